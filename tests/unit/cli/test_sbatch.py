"""Options of sbatch in each form of the manual are carried out with their meaning there, or refused by name."""

from __future__ import annotations

import re
import shlex

import pytest

from rmgr.cli.session import Session
from rmgr.cli.submit.submit import read_work, submit
from rmgr.cli.words import sbatch
from rmgr.cli.words.sbatch import translated


def carried_out(theirs: str) -> str:
    """The words here of what must have an equal as a whole."""
    (ours,), without = translated([f"#SBATCH {theirs}"])
    assert without == []
    return " ".join(ours)


@pytest.mark.parametrize(
    ("theirs", "ours"),
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
        ("--error=e.%J".replace("J", "j"), "--err=e.%j"),
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
)
def test_values_mean_here_what_they_meant_there(theirs: str, ours: str) -> None:
    assert carried_out(theirs) == ours


@pytest.mark.parametrize(
    ("theirs", "why"),
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
)
def test_what_has_no_equal_is_refused_by_name_with_what_to_type(theirs: str, why: str) -> None:
    lines, without = translated([f"#SBATCH {theirs}"])
    assert len(without) == 1, (lines, without)
    what, told = without[0]
    assert why in told
    assert what.startswith("#SBATCH") or re.split(r"[= ]", shlex.split(what)[0])[0] in theirs


def test_all_lines_are_read_together() -> None:
    lines, without = translated(["#SBATCH --mem=4G", "#SBATCH -N 2", "#SBATCH --ntasks-per-node=4  # 8 in all"])
    assert (lines, without) == ([["--mem=1024M"], ["-N", "2"], ["--processes=8"]], [])


def test_what_is_said_names_options_that_there_are() -> None:
    ours = {option for parameter in submit.params for option in (*parameter.opts, *parameter.secondary_opts)}
    others = {"--pty", "--help"}
    reasons = [rule for rule in sbatch.RULES.values() if isinstance(rule, str)] + list(sbatch.UNLIKE_DEPENDENCIES.values())
    for told in reasons:
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", told))
        assert named <= ours | others, told


@pytest.mark.parametrize("name", sorted(sbatch.RULES))
def test_every_option_is_carried_out_or_refused_with_a_reason(name: str) -> None:
    """With no value, with nonsense, with a number: words that `rmgr submit` accepts, or a reason; never an accident."""
    for value in ("", "=", "=x y", "=1", "=-1", "=0", "=%", "=\u0665", "=a:b:c,d", "=" + "9" * 30):
        lines, without = translated([f"#SBATCH '{name}{value}'"])
        assert len(without) <= 1
        assert all(what and why for what, why in without)
        if not lines or without:
            continue
        with submit.make_context("submit", [*lines[0], "--", "true"], obj=Session()) as ctx:
            values = dict(ctx.params)
            read_work(ctx, Session(), values, values.pop("words"), dashes=True)


def test_short_names_lead_to_options_that_there_are() -> None:
    known = set(sbatch.RULES)
    assert known >= set(sbatch.SHORT.values())
    assert known >= sbatch.FLAGS | sbatch.MAYBE
    assert not sbatch.FLAGS & sbatch.MAYBE
    ours = {parameter.opts[0]: parameter.opts[-1] for parameter in submit.params if len(parameter.opts) > 1}
    assert all(ours[short] == long for short, long in sbatch.ALIKE.items())
