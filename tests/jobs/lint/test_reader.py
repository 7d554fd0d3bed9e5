"""The shell reader: commands, words, quotes, and where each piece is expanded."""

import subprocess

import pytest
from hypothesis import example, given, settings

from hpctrain.checks.script import lint
from hpctrain.checks.script.explain import explain
from hpctrain.checks.script.facts import LintFacts
from hpctrain.checks.script.model import Shell
from hpctrain.checks.script.reader import SourceText, read_shell
from tests.jobs.lint import lint_corpus as corpus


def read(text: str) -> Shell:
    return read_shell(SourceText(text), Shell("batch"))


def words(text: str) -> list[list[str]]:
    return [[word.text for word in command.words] for command in read(text).commands]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b  c\t d\n", [["a", "b", "c", "d"]]),
        ("a \\\n  b\n", [["a", "b"]]),
        ("a # b\nc#d # e\n", [["a"], ["c#d"]]),
        ("a 'b  c' \"d $e\" f'g'\"h\"i\n", [["a", "b  c", "d $e", "fghi"]]),
        ("a $'b\\'c' $\"d\" \\\"e\\ f\n", [["a", "b\\'c", "d", '"e f']]),
        ("a; b & c && d || e | f |& g\n", [["a"], ["b"], ["c"], ["d"], ["e"], ["f"], ["g"]]),
        (
            "a $(b \"$(c 'd')\") `e f`\n",
            [["c", "d"], ["b", "$(c 'd')"], ["e", "f"], ["a", "$(b \"$(c 'd')\")", "`e f`"]],
        ),
        ("if a; then b; elif c; then d; else e; fi\n", [["a"], ["b"], ["c"], ["d"], ["e"]]),
        ("while a; do b; done < c\nuntil d; do e; done\n", [["a"], ["b"], ["d"], ["e"]]),
        (
            "for x in 1 2; do a; done; for ((i=0; i<3; i++)); do b; done\n",
            [["for", "x", "in", "1", "2"], ["a"], ["for"], ["((i=0; i<3; i++))"], ["b"]],
        ),
        ("case $x in a|b) c ;; (d) e ;& *) f\nesac; g\n", [["$x"], ["c"], ["e"], ["f"], ["g"]]),
        ("f() { a; }\nfunction g { b; }\nfunction h() ( c )\n", [["a"], ["b"], ["c"]]),
        ("( a; b ) | { c; }\n", [["a"], ["b"], ["c"]]),
        (
            "[[ a && (b < c) || $d =~ ^e(f|g)$ ]] && h\n",
            [["[[", "a", "b", "c", "$d", "=~", "^e", "f", "g", "$", "]]"], ["h"]],
        ),
        ("a <<EOF b\nx '\n$(\nEOF\nc\n", [["a", "b"], ["c"]]),
        ("a <<A <<'B'\n1\nA\n2\nB\nc\n", [["a"], ["c"]]),
        ("f() {\n  a <<-X\n\t1\n\tX\n}\nb\n", [["a"], ["b"]]),
        ("x=$(cat <<'E'\n'\nE\n)\nb\n", [["cat"], [], ["b"]]),
        ('a <<< "b c" 2>&1 >d &>e\n', [["a"]]),
        ("! a; time b; { c; } & d\n", [["a"], ["b"], ["c"], ["d"]]),
        ("ls ?(a|b) x@(c|d) !(e);f\n", [["ls", "?(a|b)", "x@(c|d)", "!(e)"], ["f"]]),
        ("case $x in ?(a|b)) c ;; esac\n", [["$x"], ["c"]]),
        ("diff <(a) >(b)\n", [["a"], ["b"], ["diff", "<(a)", ">(b)"]]),
        ('echo ${a:-"}"} ${b//\'/x} c\n', None),
        ("((a = 1 << 2)); b $((1 + (2))) c\n", [["((a = 1 << 2))"], ["b", "$((1 + (2)))", "c"]]),
    ],
)
def test_commands_and_their_words(text: str, expected: list[list[str]] | None) -> None:
    if expected is not None:
        assert words(text) == expected
        assert read(text).problems == []


def test_where_an_expansion_happens() -> None:
    facts = LintFacts(
        "#!/bin/bash\n#SBATCH -N 2\nsrun bash -c \"one $A \\$B '$C' $(date)\"\nsrun bash -c 'two"
        ' $D\'"$E"\nbash -c \'three $F\'\nssh h "four $G"\n',
        "x",
    )
    assert {
        part.text: part.place or command.place
        for command in facts.named("one", "two", "three")
        for part in command.expansions()
        if part.kind == "var"
    } == {
        "A": "batch",
        "B": "task",
        "C": "batch",
        "D": "task",
        "E": "batch",
        "F": "batch",
    }


def test_functions_and_files_run_where_they_are_called() -> None:
    text = (
        "#!/bin/bash\n#SBATCH -N 2\nhere() { in_batch; }\nthere() { in_task; }\nboth() { anywhere;"
        " }\nnever() { nowhere; }\nexport -f there both\nhere; both\nsrun bash -c there\nsrun bash"
        " -c 'both x'\ncat > a.sh <<'E'\n#!/bin/bash\nin_file\nE\nchmod +x a.sh\nsrun"
        " ./a.sh\n"
    )
    facts = LintFacts(text, "x")
    wanted = {
        "in_batch": "batch",
        "in_task": "task",
        "anywhere": "unknown",
        "nowhere": "unknown",
        "in_file": "task",
    }
    assert {
        name: next(one for one in facts.commands if one.name == name).place for name in wanted
    } == wanted


def test_variables_are_put_in_where_their_value_is_certain() -> None:
    text = (
        'A=1\nB="x $A"\nC=(p "q r" $A)\nD=1\nD=2\nif true; then E=1; fi\nF="-a"\nF+="'
        ' -b"\nG+=(z)\nC+=(s)\nread H\nfalse || I=1\ncmd $A $B "$B" "${C[@]}" $D $E $F $H $I "$@"\n'
    )
    facts = LintFacts(text, "x")
    command = next(one for one in facts.commands if one.name == "cmd")
    assert [word.text for word in command.argv] == [
        "cmd",
        "1",
        "x",
        "1",
        "x 1",
        "p",
        "q r",
        "1",
        "s",
        "$D",
        "$E",
        "-a",
        "-b",
        "$H",
        "$I",
        "$@",
    ]
    assert not command.complete


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("echo 'a\n", "a quote '"),
        ('echo "a\n', "double quote"),
        ("echo $(a\n", "$("),
        ("echo ${a\n", "${"),
        ("echo `a\n", "backtick"),
        ("if a; then\n b\n", "if"),
        ("while a; do b\n", "loop"),
        ("case a in\n b) c ;;\n", "case"),
        ("{ a\n", "brace"),
        ("( a\n", "parenthesis"),
        ("cat <<EOF\na\n", "heredoc"),
        ("a=(b\n", "parenthesis"),
        ("[[ a\n", "[["),
        ("echo $((1 + 2\n", "(("),
        ("a )\n", "closing parenthesis"),
    ],
)
def test_what_is_not_closed_is_a_problem(text: str, what: str) -> None:
    problems = read(text).problems
    assert problems
    assert what in min(problems)[1]
    bash = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True)
    assert bash.returncode != 0 or "delimited by end-of-file" in bash.stderr


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@example(
    'srun bash -c "\U000f0001$('
)  # the characters by which the reader marks what the outer shell expands
@given(corpus.any_text)
def test_no_text_makes_it_fail(text: str) -> None:
    for findings in (
        lint(text, "x.sbatch"),
        lint(f"#!/bin/bash\n#SBATCH --nodes=2\n{text}", "x.sbatch"),
    ):
        for finding in findings:
            assert finding.line is not None
            assert finding.column is not None
            assert finding.column >= 1
    lines = explain(text)
    assert "\n".join(line.text for line in lines) == text
    assert all(line.section and isinstance(line.to_json()["parts"], list) for line in lines)


@pytest.mark.parametrize(
    "unit",
    ["$(", '"$(', "${a:-", "$((", "(", "if ", "case x in a) ", "`", "f() ", "a=(", "?(", "-" * 20],
)
@pytest.mark.slow
def test_deep_nesting_and_long_words_neither_fail_nor_overflow_the_stack(unit: str) -> None:
    text = "#!/bin/bash\n#SBATCH --time=1\necho " + unit * 10_000
    assert all(finding.line == 3 for finding in lint(text, "x"))


def test_of_one_finding_a_hundred_are_shown() -> None:
    text = "#!/bin/bash\n#SBATCH --time=1\n" + "export PYTHONBUFFERED=1\n" * 150
    assert [finding.line for finding in lint(text, "x")] == list(range(3, 103))
