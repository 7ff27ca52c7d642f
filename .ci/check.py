# SPDX-FileCopyrightText: 2026 The crawl.py authors
# SPDX-License-Identifier: 0BSD
"""make check: the rules for the files that can be checked without running them.

Prints one line for each violation, which says what to do, and exits with status 1 if there is one.
"""

from __future__ import annotations

import ast
import contextlib
import io
import pathlib
import re
import subprocess
import symtable
import sys
import tokenize

HERE = pathlib.Path(__file__).resolve().parent.parent
SECTION = 220       # lines of code in a section: a section is meant to be read in one sitting
FUNCTION = 45       # lines of code in a function: it should fit on a screen
NESTING = 5         # levels of statements in a function
WIDTH = 100         # columns
HEADING = re.compile(r"^# (\d+  .*)\n# =+$", re.MULTILINE)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def docstring_lines(tree: ast.Module) -> set[int]:
    """Return the numbers of the lines that hold docstrings."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)):
            lines |= set(range(node.lineno, (node.end_lineno or 0) + 1))
    return lines


def count_tokens(source: str) -> int:
    """Return how many tokens a program has, without its comments, docstrings and layout.

    An f-string counts as one token, as in Python 3.11, so that all versions count alike."""
    docstrings = docstring_lines(ast.parse(source))
    layout = ("COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENDMARKER")
    count = 0
    depth = 0  # of f-strings inside one another
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        name = tokenize.tok_name[token.type]
        is_docstring = name == "STRING" and token.start[0] in docstrings
        if name == "FSTRING_END":
            depth -= 1
        elif name not in layout and not is_docstring and depth == 0:
            count += 1
        if name == "FSTRING_START":
            depth += 1
    return count


def print_size(source: str) -> None:
    """Print how many tokens crawl.py has. No number of them is too many."""
    count = count_tokens(source)
    change = ""
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        committed = subprocess.run(["git", "show", "HEAD:crawl.py"], cwd=HERE, check=True,
                                   capture_output=True, encoding="utf-8")
        change = f" ({count - count_tokens(committed.stdout):+} since the last commit)"
    print(f"crawl.py has {count} tokens{change}; comments and docstrings do not count")


def lines_of_code(lines: list[str], numbers: range, docstrings: set[int]) -> int:
    """Return how many of the lines with these numbers are code."""
    code = 0
    for number in numbers:
        line = lines[number - 1].strip()
        if line and not line.startswith("#") and number not in docstrings:
            code += 1
    return code


def long_functions(tree: ast.Module, source: str, docstrings: set[int]) -> list[str]:
    """Return the functions of crawl.py that are too long or too deeply nested."""
    faults = []
    lines = source.splitlines()
    for function in ast.walk(tree):
        if not isinstance(function, Function):
            continue
        numbers = range(function.lineno, (function.end_lineno or 0) + 1)
        code = lines_of_code(lines, numbers, docstrings)
        if code > FUNCTION:
            faults.append(f"crawl.py:{function.lineno}: {function.name} has {code} lines of code "
                          f"and may have {FUNCTION}: move one of its steps to a function")
        deepest = max(nesting(statement) for statement in function.body)
        if deepest > NESTING:
            faults.append(f"crawl.py:{function.lineno}: {function.name} nests {deepest} levels "
                          f"deep and may nest {NESTING}: move the innermost to a function")
    return faults


def nesting(statement: ast.stmt | ast.ExceptHandler | ast.match_case) -> int:
    """Return how many levels of statements are inside a statement: 0 for `x = 1`."""
    if isinstance(statement, (*Function.__args__, ast.ClassDef)):
        return 0  # which is measured by itself
    deepest = 0
    for name, field in ast.iter_fields(statement):
        for inner in field if isinstance(field, list) else []:
            # elif, except and case stand at the level of their statement.
            is_elif = name == "orelse" and isinstance(inner, ast.If) and len(field) == 1
            same_level = is_elif or isinstance(inner, (ast.ExceptHandler, ast.match_case))
            if isinstance(inner, (ast.stmt, ast.ExceptHandler, ast.match_case)):
                deepest = max(deepest, nesting(inner) + (not same_level))
    return deepest


def long_sections(source: str, docstrings: set[int]) -> list[str]:
    """Return the sections of crawl.py with too many lines of code."""
    faults = []
    lines = source.splitlines()
    starts = [source[:match.start()].count("\n") + 1 for match in HEADING.finditer(source)]
    for start, end in zip(starts, [*starts[1:], len(lines) + 1]):
        code = lines_of_code(lines, range(start, end), docstrings)
        if code > SECTION:
            faults.append(f"crawl.py:{start}: the section has {code} lines of code and may have "
                          f"{SECTION}: move a part of it to another section, or to a new one")
    return faults


def early_names(tree: ast.Module) -> list[str]:
    """Return where code uses a name above its definition. Annotations, which do not run, may."""
    for node in ast.walk(tree):
        for field in ("annotation", "returns"):
            if getattr(node, field, None) is not None:
                setattr(node, field, ast.Constant(None))
    module = symtable.symtable(ast.unparse(tree), "", "exec")
    names = {symbol.get_name() for symbol in module.get_symbols()
             if symbol.is_assigned() or symbol.is_namespace() or symbol.is_imported()}
    defined = set[str]()
    faults = []
    for statement in tree.body:
        tables = [symtable.symtable(ast.unparse(statement), "", "exec")]
        defined |= {symbol.get_name() for symbol in tables[0].get_symbols()
                    if symbol.is_assigned() or symbol.is_imported()}
        for table in tables:  # which grows
            tables += table.get_children()
            if table.get_name() in ("create_future", "create_task", "run_until_complete"):
                continue  # through these, the event loop makes futures and tasks
            used = {symbol.get_name() for symbol in table.get_symbols()
                    if symbol.is_global() or table is tables[0]}
            for name in sorted(used & names - defined):
                faults.append(f"crawl.py:{statement.lineno}: {table.get_name()} uses {name}, which "
                              "is defined further down: define it above its first use")
    return faults


def undocumented(tree: ast.Module) -> list[str]:
    """Return the public classes, functions and methods without a docstring."""
    faults = []
    for node in tree.body:
        if not isinstance(node, ast.ClassDef | Function) or node.name.startswith("_"):
            continue
        for each in [node, *(node.body if isinstance(node, ast.ClassDef) else [])]:
            if (isinstance(each, ast.ClassDef | Function) and not each.name.startswith("_")
                    and not ast.get_docstring(each)):
                faults.append(f"crawl.py:{each.lineno}: {each.name} is public: give it a docstring")
    return faults


def wrong_headings(source: str, tests: str) -> list[str]:
    """Return whether the headings differ from the contents, or from those of the tests."""
    contents = re.findall(r"^ {4,5}(\d+  \S.*?)(?:  .*)?$", source, re.MULTILINE)
    headings = HEADING.findall(source)
    faults = []
    if contents != headings:
        faults.append(f"crawl.py: the contents list {contents}, but the headings are {headings}: "
                      "make them the same")
    if HEADING.findall(tests) != headings[1:]:  # section 1 has nothing to test
        faults.append("test_crawl.py: its sections must be those of crawl.py, in the same order")
    return faults


def foreign_code(tree: ast.Module) -> list[str]:
    """Return imports from outside the standard library, and assert statements."""
    faults = []
    for node in ast.walk(tree):
        modules: list[str] = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [str(node.module)]
        elif isinstance(node, ast.Assert):
            faults.append(f"crawl.py:{node.lineno}: python -O removes assert: raise an exception")
        for module in modules:
            if module.partition(".")[0] not in sys.stdlib_module_names | {"__future__"}:
                faults.append(f"crawl.py: {module} is not in the standard library: do without it")
    return faults


def possessive_groups(tree: ast.Module) -> list[str]:
    """Return expressions with `(?:...)*+` or `(?:...)?+`, which CPython up to 3.11.4 matches
    wrongly (gh-106052, gh-100061)."""
    faults = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, (str, bytes)):
            continue
        text = node.value
        if isinstance(text, bytes):
            text = text.decode("latin-1")
        bare = re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "x", text)
        if re.search(r"\)(?:[*+?]|\{[0-9,]*\})\+", bare) and "`" not in text:
            faults.append(f"crawl.py:{node.lineno}: a group is repeated possessively: write an "
                          "atomic group, (?>(?:...)*), because of gh-106052")
    return faults


def wide_lines() -> list[str]:
    """Return the lines that are too long. README's tables, links and commands may be."""
    faults = []
    readme = (HERE / "README.md").read_text("utf-8")
    prose = re.sub(r"(?ms)^```.*?^```", lambda code: "\n" * code[0].count("\n"), readme)
    texts = {path: path.read_text("utf-8") for path in [*HERE.glob("*.py"), *HERE.glob(".ci/*.py")]}
    for path, text in {**texts, HERE / "README.md": prose}.items():
        for number, line in enumerate(text.splitlines(), 1):
            may_be_long = path.suffix == ".md" and re.match(r"\||.*\]\(|  `.*`$", line)
            if len(line) > WIDTH and not may_be_long:
                faults.append(f"{path.relative_to(HERE)}:{number}: the line has {len(line)} "
                              f"columns and may have {WIDTH}: use two lines")
    return faults


def main() -> int:
    """Check the files; return the exit status."""
    source = (HERE / "crawl.py").read_text("utf-8")
    tests = (HERE / "test_crawl.py").read_text("utf-8")
    tree = ast.parse(source)
    docstrings = docstring_lines(tree)
    print_size(source)
    faults = [*long_sections(source, docstrings), *long_functions(tree, source, docstrings),
              *undocumented(tree), *wrong_headings(source, tests),
              *foreign_code(tree), *possessive_groups(tree), *wide_lines(), *early_names(tree)]
    print(*faults, sep="\n", end="\n" * bool(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
