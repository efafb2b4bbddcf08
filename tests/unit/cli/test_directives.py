"""Options of sbatch and qsub in each form of their manuals are carried out with their meaning there, or refused by name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator

import pytest

from rmgr.cli.session import Session
from rmgr.cli.submit.submit import read_work, submit
from rmgr.cli.words import qsub, sbatch
from rmgr.cli.words.script import PBS, SBATCH


def translated(*lines: str) -> tuple[list[list[str]], list[tuple[str, str]]]:
    return (sbatch if lines[0].startswith(SBATCH) else qsub).translated(lines)


def carried_out(*lines: str) -> str:
    """The words here of what must have an equal as a whole."""
    words, without = translated(*lines)
    assert without == []
    return " ".join(word for of_line in words for word in of_line)


def lines_of(mark: str, cases: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    return ((f"{mark} {theirs}", told) for theirs, told in cases)


@pytest.mark.parametrize(
    ("line", "ours"),
    [
        *lines_of(
            SBATCH,
            [
                ("--time=30", "--time=30m"),  # minutes there, seconds here
                ("-t1-12", "-t 1-12:00:00"),
                ("-t 1-12:30", "-t 1-12:30:00"),
                ("-t 1-12:30:15", "-t 1-12:30:15"),
                ("-t 1:30", "-t 1:30"),
                ("-t 90:00", "-t 90:00"),
                ("--time 12:30:00", "--time 12:30:00"),
                ("--mem=4000", "--mem=4000M"),  # mebibytes there, bytes here
                ("--mem 4G", "--mem 4G"),
                ("--mem=512K", "--mem=512K"),
                ("--mem=4G -n 1", "--mem=4G -n 1"),
                ("--mem=4G -N 3", "--mem=4G -N 3"),  # a process a node
                ("--mem=4G -N 2 -n 8", "--mem=1024M -N 2 -n 8"),  # of a node there, of a process here
                ("--mem=3G -N 2 --ntasks-per-node=2", "--mem=1536M -N 2 --processes=4"),
                ("--mem-per-cpu=2G -c 4", "--mem=8192M -c 4"),
                ("--mem-per-cpu=100", "--mem=100M"),
                ("-c 4 --cpus-per-task=8", "-c 4 --cores=8"),
                ("--gres=gpu", "--gpus=1"),
                ("--gres=gpu:2", "--gpus=2"),
                ("--gres=gres:gpu:2", "--gpus=2"),
                ("--gres=gpu:2,lustre:1", "--gpus=2 --resource=lustre=1"),
                ("--gres=none", ""),
                ("--gpus=2", "--gpus=2"),
                ("-G 2", "--gpus 2"),
                ("--gpus-per-node=2", "--gpus=2"),
                ("--gpus-per-node=2 -N 4", "--gpus=2 -N 4"),
                ("--gpus-per-task=2 -n 8", "--gpus=2 -n 8"),
                ("--array=0-15:4%2", "--array=0-15:4%2"),
                ("-a 1,3,5-7", "-a 1,3,5-7"),
                ("--dependency=afterok:7:8,afterany:9", "--after=ok:7:8,any:9"),
                ("--dependency=7:8", "--after=any:7:8"),  # an end of any kind there
                ("-d afterany:7", "--after any:7"),
                ("--depend=afterok:7", "--after=ok:7"),  # the beginning of a name is enough there
                ("-o slurm-%A_%a.out -e%j.err", "-o slurm-%j_%a.out -e %j.err"),
                ("-o %x.%N.out", "-o %x.%N.out --err %x.%N.out"),  # stderr goes to the same file there
                ("--output=100%%A", "--out=100%%A --err=100%%A"),
                ("--error=e.%j", "--err=e.%j"),
                ("--begin=now", "--begin=now"),
                ("--begin=now+2hours", "--begin=now+2h"),
                ("--begin=now+90", "--begin=now+90s"),
                ("--begin='now + 1 week'", "--begin=now+7d"),
                ("--begin=now+5min", "--begin=now+5m"),
                ("-b 16:00", "--begin 16:00"),
                ("--begin=4:30PM", "--begin=16:30"),
                ("--begin=12:05AM", "--begin=00:05"),
                ("--begin=noon", "--begin=12:00"),
                ("--begin=teatime", "--begin=16:00"),
                ("--begin=fika", "--begin=15:00"),
                ("--begin=elevenses", "--begin=11:00"),
                ("--begin=midnight", "--begin=midnight"),
                ("--begin=tomorrow", "--begin=tomorrow"),
                ("--begin=01/30/27", "--begin=2027-01-30"),
                ("--begin=2027-01-20T12:34:00", "--begin=2027-01-20T12:34:00"),
                ("--nodes=2-4", "--nodes=2"),
                ("-N2", "-N 2"),
                ("-N 2 --ntasks-per-node=8", "-N 2 --processes=16"),
                ("-N 2 -n 16 --ntasks-per-node=8", "-N 2 -n 16"),  # the most of a node
                ("-w n1", "-w n1"),
                ("-w n[1-3]", "-w n[1-3] --nodes 3"),  # all of them there
                ("--nodelist=n1,n2 -N 2", "--nodelist=n1,n2 -N 2"),
                ("-x n[1-3],m", "-x n[1-3],m"),
                ("-C intel&gpu", "--features intel,gpu"),
                ("--nice=100", "--priority=-100"),  # later there, and a larger number is earlier here
                ("--nice", "--priority=-100"),
                ("--nice -n 2", "--priority=-100 -n 2"),  # its value stands behind "=" alone
                ("--nice=-5", "--priority=5"),
                ("--nice=0", ""),
                ("--priority=50", "--priority=50"),
                ("--priority=0", "--hold"),
                ("--export=NONE", ""),  # nothing goes along here
                ("--export=NIL", ""),
                ("--export=EDITOR,ARG=test", "--env=EDITOR --env=ARG=test"),
                ("--exclusive", "--exclusive"),
                ("--requeue", "--requeue"),
                ("--no-requeue", "--no-requeue"),
                ("--kill-on-bad-exit=1", "--kill-on-bad-exit"),
                ("-K0", ""),
                ("--mail-type=NONE", ""),
                ("--no-kill=off", ""),
                ("--use-min-nodes", ""),
                ("--ignore-pbs", ""),
                ("--wait-all-nodes=1", ""),
                ("--kill-on-invalid-dep=yes", ""),
                ("-A physics -H -W -J x", "--account physics --hold --wait -J x"),
                ("-p fast", "--queue fast"),
                ("--qos=high", "--queue=high"),
                ("-D /work", "--cwd /work"),
                ("--test-only --parsable", "--dry-run --parsable"),
            ],
        ),
        *lines_of(
            PBS,
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
        ),
    ],
)
def test_values_mean_here_what_they_meant_there(line: str, ours: str) -> None:
    assert carried_out(line) == ours


@pytest.mark.parametrize(
    ("line", "why"),
    [
        *lines_of(
            SBATCH,
            [
                ("--dependency=singleton", "--after=any:ID"),
                ("--dependency=afternotok:7", "--after=fail:7"),
                ("--dependency=after:7+5", "--after=any:7"),
                ("--dependency=aftercorr:7", "--after=ok:7"),
                ("--dependency=afterburstbuffer:7", "--after=any:7"),
                ("--dependency=expand:7", "submit"),
                ("--dependency=afterok:7?afterany:8", "all must be met"),
                ("--dependency=afterok:7_3", "whole submission"),
                ("--dependency=afterok:7,singleton", "--after=any:ID"),
                ("--dependency=afterok", "--after=ok:1"),
                ("--gpus=a100:2", "--gpus=2 --features=a100"),
                ("--gpus=2 -n 4", "4 processes"),
                ("--gpus=2 -w n[1-2]", "2 processes"),
                ("--gpus-per-node=a100:1,v100:1", "one number"),
                ("--gpus-per-node=4 -N 2 -n 8", "8 processes"),
                ("--gres=gpu:a100:4", "--gpus=4 --features=a100"),
                ("--gres=nvme:fast:1", "--resource=nvme.fast=1"),
                ("--gres=gpu:2K", "--gpus=2"),
                ("--gres=help", "--gpus=2"),
                ("--exclusive=user", "--exclusive"),
                ("--exclusive=mcs", "--exclusive"),
                ("--exclusive=topo", "--exclusive"),
                ("--requeue=expedited", "--requeue"),
                ("--hold=x", "no value"),
                ("--mem=0", "--exclusive"),
                ("--mem=4G -n 4", "4 processes"),
                ("--mem=4P", "--mem=512M"),
                ("--mem=1.5G", "--mem=512M"),
                ("--mem-per-gpu=4G", "--mem"),
                ("--time=0", "leave --time out"),
                ("--time=UNLIMITED", "leave --time out"),
                ("--time=1:90:00", "--time=90m"),
                ("--time=1h", "--time=90m"),
                ("--array=1-4%0", "--array=0-15:2%4"),
                ("--array=1,1", "--array=0-15:2%4"),
                ("--array=[1-4]", "--array=0-15:2%4"),
                ("--nodes=1-15:4", "--nodes=4"),
                ("--nodes=1,5", "--nodes=4"),
                ("--nodes=2k", "--nodes=4"),
                ("--ntasks-per-node=8", "--processes=8"),
                ("-N 2 -n 17 --ntasks-per-node=8", "spread evenly"),
                ("-w n[1-3] -N 5", "--features"),
                ("-w n[1-3] -n 2", "--features"),
                ("-w ./hosts", "--nodelist=n1,n2"),
                ("-x ./hosts", "--exclude=n1,n2"),
                ("-C intel|amd", "--features=a,b"),
                ("-C [rack1*2&rack2*4]", "--features=a,b"),
                ("-L foo:4", "--resource=NAME=2"),
                ("--begin=now+2months", "--begin=16:00"),
                ("--begin=013027", "--begin=16:00"),
                ("--begin=13:00PM", "--begin=16:00"),
                ("--begin=tomorrow18:00", "--begin=16:00"),
                ("--export=ALL", "--env=NAME"),
                ("--export=ALL,A=1", "--env=NAME"),
                ("--export='A=\"x,y\"'", "--env=NAME=VALUE"),
                ("--export-file=f", "--env=NAME=VALUE"),
                ("--signal=B:USR1@60", "SIGTERM"),
                ("--signal=10", "SIGTERM"),
                ("--mail-type=END,FAIL", "rmgr wait"),
                ("--mail-user=me@here", "rmgr wait"),
                ("--open-mode=append", "%a"),
                ("--open-mode=truncate", "%a"),
                ("-o x.%t", "%j"),  # a rank there, the attempt here
                ("-o x.%5j", "%j"),
                ("-o x.%u", "%j"),
                ("-o x.%J", "%j"),
                ("-o 'x\\\\%j'", "backslash"),
                ("-o none", "rmgr logs"),
                ("-i in.txt", "--stdin=FILE"),
                ("--nice=2000000000", "--priority=-100"),
                ("--nice=x", "--priority=-100"),
                ("--priority=TOP", "--priority"),
                ("-p a,b", "--queue=NAME"),
                ("-p a --qos=b", "one queue"),
                ("--chdir=work", "--cwd=/"),
                ("--deadline=noon", "--time"),
                ("--immediate=60", "--begin"),
                ("--time-min=10", "--time"),
                ("--no-kill", "--no-requeue"),
                ("-c 0", "--cores=4"),
                ("-n", "missing"),
                ("--xyz=1", "no such option"),
                ("--mail=END", "no such option"),  # of two that begin so
                ("hetjob", "--from FILE"),
                ("--comment 'my job'", "--name"),
                ("--job-name='x", "cannot be read"),
            ],
        ),
        *lines_of(
            PBS,
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
        ),
    ],
)
def test_what_has_no_equal_is_refused_by_name_with_what_to_type(line: str, why: str) -> None:
    lines, without = translated(line)
    assert len(without) == 1, (lines, without)
    what, told = without[0]
    assert why in told
    assert what.startswith("#") or re.split(r"[= ]", shlex.split(what)[0])[0] in line


@pytest.mark.parametrize("old", ["ncpus=4", "mem=4gb", "nodes=2"])
def test_what_cannot_stand_beside_select_there_is_refused(old: str) -> None:
    lines, without = translated("#PBS -l select=1", f"#PBS -l {old}")
    assert (lines, [what for what, _ in without]) == ([[], []], [f"-l {old}"])


def test_all_lines_are_read_together() -> None:
    lines = ("#SBATCH --mem=4G", "#SBATCH -N 2", "#SBATCH --ntasks-per-node=4  # 8 in all")
    assert translated(*lines) == ([["--mem=1024M"], ["-N", "2"], ["--processes=8"]], [])
    lines = ("#PBS -j oe", "#PBS -o x", "#PBS -l nodes=2:ppn=2", "#PBS -l mem=8gb")
    assert carried_out(*lines) == "--out=x --err=x --processes=4 --nodes=2 --mem=2G"


def test_an_array_that_may_not_run_again_is_none_there() -> None:
    _, without = translated("#PBS -J 1-3", "#PBS -r n")
    assert [what for what, _ in without] == ["-r n"]


def test_what_is_said_names_options_that_there_are() -> None:
    ours = {option for parameter in submit.params for option in (*parameter.opts, *parameter.secondary_opts)}
    tables = (sbatch.RULES, sbatch.UNLIKE_DEPENDENCIES, qsub.RULES, qsub.RESOURCES, qsub.ATTRIBUTES, qsub.UNLIKE_DEPENDENCIES)
    for told in [rule for table in tables for rule in table.values() if isinstance(rule, str)]:
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", told))
        assert named <= ours | {"--pty", "--help", "--preserve-status"}, told  # the last one is that of timeout


_NAMES = [*sorted(qsub.RULES), *(f"-l {name}" for name in sorted(qsub.RESOURCES)), *(f"-W {name}" for name in sorted(qsub.ATTRIBUTES))]
_NONSENSE = ("x y", "1", "-1", "0", "%", "\u0665", "a:b:c,d", "9" * 30)


@pytest.mark.parametrize(("mark", "name"), [*((SBATCH, name) for name in sorted(sbatch.RULES)), *((PBS, name) for name in _NAMES)])
def test_every_option_is_carried_out_or_refused_with_a_reason(mark: str, name: str) -> None:
    """With no value, with nonsense, with a number: words that `rmgr submit` accepts, or a reason; never an accident."""
    if mark == SBATCH:
        written = [f"'{name}{value}'" for value in ("", "=", *(f"={value}" for value in _NONSENSE))]
    else:
        values = ("", *_NONSENSE, "=", "1:=", "::", "+", "#", "1:ncpus=1:ncpus=1", "1+2:ppn=2")
        written = [f"{name}{'=' if ' ' in name else ' '}{shlex.quote(value)}" for value in values]
    for words in written:
        lines, without = translated(f"{mark} {words}")
        assert mark == PBS or len(without) <= 1
        assert all(what and why for what, why in without)
        if without:
            continue
        with submit.make_context("submit", [*lines[0], "--", "true"], obj=Session()) as ctx:
            given = dict(ctx.params)
            read_work(ctx, Session(), given, given.pop("words"), dashes=True)


def test_short_names_lead_to_options_that_there_are() -> None:
    known = set(sbatch.RULES)
    assert known >= set(sbatch.SHORT.values())
    assert known >= sbatch.FLAGS | sbatch.MAYBE
    assert not sbatch.FLAGS & sbatch.MAYBE
    ours = {parameter.opts[0]: parameter.opts[-1] for parameter in submit.params if len(parameter.opts) > 1}
    assert all(ours[short] == long for short, long in sbatch.ALIKE.items())
