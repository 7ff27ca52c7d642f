# SPDX-FileCopyrightText: 2026 The crawl.py authors
# SPDX-License-Identifier: 0BSD
"""What can be seen of the files without running them: the bound of crawl.py, its order, its contents.

Prints each fault in a line, and ends with status 1 if there is one.
"""

import ast
import io
import pathlib
import re
import symtable
import sys
import tokenize

HERE = pathlib.Path(__file__).resolve().parent.parent
TOKENS, CODE, PROSE, LINES, SECTION, WIDTH = 18_000, 1_840, 860, 3_120, 200, 100
TEST_LINES, TEST_BYTES, README_LINES = 4_400, 200_000, 200
HEADING = re.compile(r"^# (\d+  .*)\n# =+$", re.MULTILINE)


def prose_of(source: str) -> tuple[set[int], set[int]]:
    """Return the numbers of the lines that hold docstrings, and of those that are comments."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)):
            docstrings |= set(range(node.lineno, (node.end_lineno or 0) + 1))
    comments = {number for number, line in enumerate(source.splitlines(), 1) if line.strip().startswith("#")}
    return docstrings, comments


def sizes(source: str) -> list[str]:
    """Return what is larger than it may be; tokens are as Python 3.11 counts them (later ones cut f-strings)."""
    docstrings, comments = prose_of(source)
    lines = source.splitlines()
    code = [number for number, line in enumerate(lines, 1)
            if line.strip() and number not in docstrings | comments]
    prose = len([number for number in docstrings | comments if lines[number - 1].strip()])
    starts = [source[:match.start()].count("\n") for match in HEADING.finditer(source)]
    sections = [sum(start < number <= end for number in code)
                for start, end in zip(starts, [*starts[1:], len(lines)])]
    found = {"lines of code": (len(code), CODE), "lines of prose": (prose, PROSE), "lines": (len(lines), LINES),
             "lines of code in a section": (max(sections), SECTION)}
    if sys.version_info < (3, 12):
        layout = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
                  tokenize.ENDMARKER)
        tokens = [token for token in tokenize.generate_tokens(io.StringIO(source).readline)
                  if token.type not in layout and not (
                      token.type == tokenize.STRING and token.start[0] in docstrings)]
        found["tokens"] = len(tokens), TOKENS
    return [f"crawl.py has {count} {what}, and may have {most}" for what, (count, most) in found.items()
            if count > most]


def early_names(source: str) -> list[str]:
    """Return what code refers to before it is defined; annotations, which are not evaluated, may."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for field in ("annotation", "returns"):
            if getattr(node, field, None) is not None:
                setattr(node, field, ast.Constant(None))
    names = {symbol.get_name() for symbol in symtable.symtable(ast.unparse(tree), "", "exec").get_symbols()
             if symbol.is_assigned() or symbol.is_namespace() or symbol.is_imported()}
    defined, faults = set[str](), list[str]()
    for statement in tree.body:
        tables = [symtable.symtable(ast.unparse(statement), "", "exec")]
        defined |= {symbol.get_name() for symbol in tables[0].get_symbols()
                    if symbol.is_assigned() or symbol.is_imported()}
        for table in tables:  # which grows
            tables += table.get_children()
            if table.get_name() in ("create_future", "create_task", "run_until_complete"):
                continue  # the loop's door to the next two sections
            early = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()
                     or table is tables[0]} & names - defined
            faults += [f"{table.get_name()} refers to {', '.join(early)} further down"] * bool(early)
    return faults


def undocumented(source: str) -> list[str]:
    """Return what is public and has no docstring."""
    faults = []
    for node in ast.parse(source).body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) or node.name[0] == "_":
            continue
        inner = node.body if isinstance(node, ast.ClassDef) else []
        for each in [node, *inner]:
            if (isinstance(each, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
                    and each.name[0] != "_" and not ast.get_docstring(each)):
                faults.append(f"{node.name}, {each.name}: no docstring")
    return faults


def main() -> int:
    """Look at the files; return the exit status."""
    source, tests = (HERE / "crawl.py").read_text("utf-8"), (HERE / "test_crawl.py").read_text("utf-8")
    faults = sizes(source) + early_names(source) + undocumented(source)
    contents = re.findall(r"^ {4,5}(\d+  \S.*?)(?:  .*)?$", source, re.MULTILINE)
    headings = HEADING.findall(source)
    if contents != headings:
        faults.append(f"the contents say {contents}, the headings {headings}")
    if HEADING.findall(tests) != headings[1:]:  # section 1 has nothing to test
        faults.append("test_crawl.py has other sections, or another order")
    tree = ast.parse(source)
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    others = {name.split(".")[0] for name in modules} - sys.stdlib_module_names - {"__future__"}
    faults += [f"{name} is not of the standard library" for name in others]
    faults += [f"line {node.lineno}: assert" for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    for node in ast.walk(tree):
        # CPython up to 3.11.4 matches `(?:...)*+` and `(?:...)?+` wrongly (gh-106052, gh-100061).
        if isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)):
            text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            bare = re.sub(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", "x", text)
            if re.search(r"\)(?:[*+?]|\{[0-9,]*\})\+", bare) and "`" not in text:
                faults.append(f"line {node.lineno}: a group is repeated possessively")
    readme = (HERE / "README.md").read_text("utf-8").partition("## Licence")[0]
    for name, count, most in (("lines in test_crawl.py", tests.count("\n"), TEST_LINES),
                              ("bytes in test_crawl.py", len(tests.encode()), TEST_BYTES),
                              ("lines in README.md beside the licence", readme.count("\n"), README_LINES)):
        faults += [f"{count} {name}, which may have {most}"] * (count > most)
    for name, width in (("crawl.py", WIDTH), ("test_crawl.py", 110), ("conftest.py", 110), ("README.md", 110)):
        for number, line in enumerate((HERE / name).read_text("utf-8").splitlines(), 1):
            if len(line) > width:
                faults.append(f"{name}, line {number}: {len(line)} columns, and may have {width}")
    print(*faults, sep="\n", end="\n" * bool(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
