"""Each line of a batch script with why it is there: the teaching mode behind `hpctrain explain-script` and `hpctrain render --explain`.

Works on any sbatch script: what a line *is* (a directive, a command, a variable) finds its sentence in the tables, whoever wrote it.
What the tables do not know is said to be unknown. Pure: text in, lines out, and no text makes it fail.

    read_shell         text → statements and their words
    facts              the script's own numbers
    directives_said    #SBATCH lines
    statements         everything else; launch: programs that start others, option by option
    lines              all of it laid out, line by line
    *_rows             the tables; readings: values in words
"""

from hpctrain.jobs.explain_script.lines import Line, explain
from hpctrain.jobs.explain_script.said import Part

__all__ = ["Line", "Part", "explain"]
