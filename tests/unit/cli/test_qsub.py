"""Options of qsub in each form of the manual are carried out with their meaning there, or refused by name."""

from __future__ import annotations

import re
import shlex

import pytest

from rmgr.cli.session import Session
from rmgr.cli.submit.submit import read_work, submit
from rmgr.cli.words import qsub
from rmgr.cli.words.qsub import translated


def carried_out(*theirs: str) -> str:
    """The words here of what must have an equal as a whole."""
    lines, without = translated([f"#PBS {line}" for line in theirs])
    assert without == []
    return " ".join(word for words in lines for word in words)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("-N x -q fast -A physics", "--name=x --queue=fast --account=physics"),
        ("-Nx", "--name=x"),
        ("-hN x", "--hold --name=x"),
        ("-N x  # it's a name", "--name=x"),
        ("-a 1600", "--begin=16:00"),
        ("-a 1600.30", "--begin=16:00:30"),
        ("-a 2701301234", "--begin=2027-01-30T12:34"),
        ("-a 202701301234.05", "--begin=2027-01-30T12:34:05"),
        ("-c n", ""),
        ("-c u", ""),
        ("-o out.txt", "--out=out.txt"),
        ("-e err.txt", "--err=err.txt"),
        ("-o out.^array_index^ -e 100%", "--out=out.%a --err=100%%"),
        ("-j oe -o both.txt", "--out=both.txt --err=both.txt"),
        ("-j oe -o both.txt -e no.txt", "--out=both.txt --err=both.txt"),
        ("-j eo -e both.txt", "--err=both.txt --out=both.txt"),
        ("-j n -o a", "--out=a"),
        ("-f", ""),
        ("-J 2-7:2", "--array=2-7:2"),
        ("-J 1-100%5", "--array=1-100%5"),
        ("-t 1,3-5%2", "--array=1,3-5%2"),
        ("-d /work", "--cwd=/work"),
        ("-k n", ""),
        ("-k doe", ""),
        ("-m n", ""),
        ("-p -5", "--priority=-5"),
        ("-p 100", "--priority=100"),
        ("-r y", "--requeue"),
        ("-r n", "--no-requeue"),
        ("-v EDITOR,A=1", "--env=EDITOR --env=A=1"),
        ("-v \"A='x,y',B=2\"", "--env=A=x,y --env=B=2"),
        ("-v 'a=10, b=\"1,2\", HOME=/home/z'", "--env=a=10 --env=b=1,2 --env=HOME=/home/z"),
        ("-W block=true", "--wait"),
        ("-Wblock=false", ""),
        ("-W depend=afterok:7", "--after=ok:7"),
        ("-W depend=afterok:7:8,afternotok:9", "--after=ok:7:8,fail:9"),
        ("-W depend=afterok:7.host.domain.com,block=true", "--after=ok:7 --wait"),
        ("-W depend=afterok:12[].host", "--after=ok:12"),
        ("-W umask=33", "--env=RMGR_UMASK=0033"),
        ("-W umask=0022", "--env=RMGR_UMASK=0022"),
        ("-W sandbox=PRIVATE", ""),
        ("-W interactive=false", ""),
        ("-l walltime=1:30:00", "--time=1:30:00"),
        ("-l walltime=90", "--time=90"),  # seconds, here too
        ("-l walltime=90:00", "--time=90:00"),
        ("-l ncpus=4", "--cores=4"),
        ("-l ncpus=4:mem=2gb", "--cores=4 --mem=2G"),
        ("-l mem=512mb,walltime=60", "--mem=512M --time=60"),
        ("-l mem=4194304", "--mem=4M"),  # bytes
        ("-l mem=1mw", "--mem=8M"),  # words of 8 bytes
        ("-l select=1", ""),
        ("-l select=1:ncpus=8:mem=16gb", "--cores=8 --mem=16G"),
        ("-l select=4", "--processes=4"),
        ("-l select=2:ncpus=4:mem=8gb", "--processes=2 --cores=4 --mem=8G"),  # two chunks may share a node
        ("-l select=ncpus=2", "--cores=2"),
        ("-l select=1:ncpus=2+1:ncpus=2", "--processes=2 --cores=2"),
        ("-l select=1:ncpus=16:mpiprocs=16", "--processes=16 --nodes=1"),
        ("-l select=2:ncpus=16:mpiprocs=4:mem=8gb", "--processes=8 --nodes=2 --cores=4 --mem=2G"),
        ("-l select=2:mpiprocs=2", "--processes=4 --nodes=2"),
        ("-l select=4:ncpus=2 -l place=scatter", "--processes=4 --nodes=4 --cores=2"),
        ("-l select=4:ncpus=2,place=pack:excl", "--processes=4 --nodes=1 --cores=2 --exclusive"),
        ("-l select=4 -l place=vscatter:exclhost", "--processes=4 --nodes=4 --exclusive"),
        ("-l select=4 -l place=free:shared", "--processes=4"),
        ("-l select=1:ngpus=2", "--gpus=2"),
        ("-l select=2:ngpus=1", "--processes=2 --gpus=1"),
        ("-l select=1:ncpus=8:ompthreads=4", "--cores=8 --env=OMP_NUM_THREADS=4"),
        ("-l select=1:host=n1", "--nodelist=n1"),
        ("-l select=2:avx=true:ib=True", "--processes=2 --features=avx,ib"),
        ("-l nodes=4", "--processes=4 --nodes=4"),
        ("-l nodes=1", ""),
        ("-l nodes=2:ppn=8", "--processes=16 --nodes=2"),
        ("-l nodes=1:ppn=8", "--processes=8 --nodes=1"),
        ("-l nodes=2:ppn=4:cpp=2", "--processes=8 --nodes=2 --cores=2"),
        ("-l nodes=2:ppn=4#excl", "--processes=8 --nodes=2 --exclusive"),
        ("-l nodes=2:ppn=2+1:ppn=2", "--processes=6 --nodes=3"),
        ("-l mem=16gb -l nodes=4", "--mem=4G --processes=4 --nodes=4"),  # of the job there
        ("-l mem=16gb,nodes=2:ppn=4", "--mem=2G --processes=8 --nodes=2"),
    ],
)
def test_values_mean_here_what_they_meant_there(theirs: str, ours: str) -> None:
    assert carried_out(theirs) == ours


@pytest.mark.parametrize(
    ("theirs", "why"),
    [
        ("-a 301234", "whole date"),  # a day of some month
        ("-a 2560", "no time"),
        ("-a 16:00", "16:00"),
        ("-C '#X'", "#RMGR"),
        ("-c w", "--checkpoint-every"),
        ("-c w=10", "--checkpoint-every"),
        ("-c c=5", "--checkpoint-every"),
        ("-c s", "leave it out"),
        ("-o host:out", "without a host"),
        ("-o $HOME/out", "%j"),
        ("-e logs/", "name of a file"),
        ("-G", "--pty"),
        ("-I", "rmgr run --pty"),
        ("-X", "--pty"),
        ("-j oe", "rmgr logs"),
        ("-j eo", "--out=FILE"),
        ("-j x", "-j oe"),
        ("-J 5", "--array=0-15:2%4"),
        ("-J 1,3", "--array=0-15:2%4"),
        ("-J 7-2", "--array=0-15:2%4"),
        ("-k oe", "--out="),
        ("-m abe", "rmgr wait"),
        ("-M me@here", "rmgr wait"),
        ("-p high", "--priority=100"),
        ("-P chem", "--account"),
        ("-q q@server", "--zk"),
        ("-q @server", "--zk"),
        ("-R oe", "rm them"),
        ("-r x", "--no-requeue"),
        ("-S /bin/bash", "first line"),
        ("-u me", "another user"),
        ("-V", "--env=NAME"),
        ("-v 'A=\"x'", "--env=NAME=VALUE"),
        ("-d work", "whole path"),
        ("-z", "/dev/null"),
        ("-W depend=after:7", "--after=any:7"),
        ("-W depend=afterany:7", "--after=any:7"),
        ("-W depend=before:7", "submit that one later"),
        ("-W depend=beforeok:7", "submit that one later"),
        ("-W depend=on:2", "--after"),
        ("-W depend=runone:7", "rmgr cancel"),
        ("-W depend=afterok:7[3]", "whole submission"),
        ("-W depend=afterok", "--after=ok:1"),
        ("-W umask=99", "RMGR_UMASK"),
        ("-W group_list=chem", "groups"),
        ("-W interactive=true", "--pty"),
        ("-W pwd", "password"),
        ("-W run_count=3", "--retries"),
        ("-W sandbox=HOME", "--cwd"),
        ("-W stagein=a@h:b", "--upload"),
        ("-W stageout=a@h:b", "--output"),
        ("-W x=1", "no attribute"),
        ("-l walltime=1h", "--time=90"),
        ("-l walltime=0", "--time=90"),
        ("-l walltime=1:99:00", "--time=90"),
        ("-l cput=1:00", "--time"),
        ("-l pcput=1:00", "--time"),
        ("-l vmem=4gb", "--mem"),
        ("-l pvmem=4gb", "--mem"),
        ("-l pmem=4gb", "--mem"),
        ("-l file=1gb", "ulimit"),
        ("-l nice=10", "nice -n"),
        ("-l software=x", "--resource"),
        ("-l arch=linux", "--features"),
        ("-l host=n1", "--nodelist"),
        ("-l scratch=5", "--resource=scratch=5"),
        ("-l site=here", "--features=here"),
        ("-l mem=0", "--mem=512M"),
        ("-l mem=lots", "--mem=512M"),
        ("-l mem", "missing"),
        ("-l ncpus=0", "--cores=4"),
        ("-l nodes=n1", "--nodelist=n1"),
        ("-l nodes=2:ppn=4:gpu", "--features=gpu"),
        ("-l nodes=2:gpus=4", "--features"),
        ("-l nodes=2:ppn=4+1:ppn=8", "alike"),
        ("-l nodes=2#big", "--features=big"),
        ("-l nodes=0", "number of chunks"),
        ("-l place=scatter", "select="),
        ("-l select=2 -l place=group=rack", "--nodelist"),
        ("-l select=2 -l place=near", "--nodes=N"),
        ("-l select=1:ncpus=2+2:ncpus=4", "alike"),
        ("-l select=1:ncpus=4:mpiprocs=3", "--cores"),
        ("-l select=1:mem=1kb:mpiprocs=3", "--mem"),
        ("-l select=1:ngpus=2:mpiprocs=2", "--gpus"),
        ("-l select=1:scratch=5", "--resource=scratch=5"),
        ("-l select=1:arch=linux", "--features"),
        ("-l select=1:gpu=false", "--exclude"),
        ("-l select=2:host=n1", "--nodelist=n1,n2"),
        ("-l select=x", "select=4"),
        ("-N", "missing"),
        ("-Y", "no such option"),
        ("--xyz", "no such option"),
        ("word", "no such option"),
        ("-N 'x", "cannot be read"),
    ],
)
def test_what_has_no_equal_is_refused_by_name_with_what_to_type(theirs: str, why: str) -> None:
    lines, without = translated([f"#PBS {theirs}"])
    assert len(without) == 1, (lines, without)
    what, told = without[0]
    assert why in told
    assert what.startswith("#PBS") or shlex.split(what)[0] in theirs


@pytest.mark.parametrize("old", ["ncpus=4", "mem=4gb", "nodes=2"])
def test_what_cannot_stand_beside_select_there_is_refused(old: str) -> None:
    lines, without = translated(["#PBS -l select=1", f"#PBS -l {old}"])
    assert (lines, [what for what, _ in without]) == ([[], []], [f"-l {old}"])


def test_all_lines_are_read_together() -> None:
    assert carried_out("-j oe", "-o x", "-l nodes=2:ppn=2", "-l mem=8gb") == "--out=x --err=x --processes=4 --nodes=2 --mem=2G"


def test_an_array_that_may_not_run_again_is_none_there() -> None:
    _, without = translated(["#PBS -J 1-3", "#PBS -r n"])
    assert [what for what, _ in without] == ["-r n"]


def test_what_is_said_names_options_that_there_are() -> None:
    ours = {option for parameter in submit.params for option in (*parameter.opts, *parameter.secondary_opts)}
    tables = (qsub.RULES, qsub.RESOURCES, qsub.ATTRIBUTES, qsub.UNLIKE_DEPENDENCIES)
    for told in [rule for table in tables for rule in table.values() if isinstance(rule, str)]:
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", told))
        assert named <= ours | {"--pty", "--help", "--zk"}, told


_NAMES = [*sorted(qsub.RULES), *(f"-l {name}" for name in sorted(qsub.RESOURCES)), *(f"-W {name}" for name in sorted(qsub.ATTRIBUTES))]


@pytest.mark.parametrize("name", _NAMES)
def test_every_option_is_carried_out_or_refused_with_a_reason(name: str) -> None:
    """With no value, with nonsense, with a number: words that `rmgr submit` accepts, or a reason; never an accident."""
    joint = "=" if " " in name else " "
    for value in (
        "",
        "x y",
        "1",
        "-1",
        "0",
        "%",
        "\u0665",
        "a:b:c,d",
        "9" * 30,
        "=",
        "1:=",
        "::",
        "+",
        "#",
        "1:ncpus=1:ncpus=1",
        "1+2:ppn=2",
    ):
        lines, without = translated([f"#PBS {name}{joint}{shlex.quote(value)}"])
        assert all(what and why for what, why in without)
        if without:
            continue
        with submit.make_context("submit", [*lines[0], "--", "true"], obj=Session()) as ctx:
            values = dict(ctx.params)
            read_work(ctx, Session(), values, values.pop("words"), dashes=True)
