"""XML into a tree that remembers line numbers; refuses entities and document types (no expansion, no outside files)."""

from __future__ import annotations

from dataclasses import dataclass, field
from xml.parsers import expat

from zipplan.planner.errors import TopologyError


@dataclass
class Element:
    """One element; `line` is where its start tag stands."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)

    def need(self, attribute: str, where: str) -> str:
        """A required attribute that is not empty. Raises TopologyError with line, element and attribute."""
        value = self.attributes.get(attribute, "").strip()
        if not value:
            raise TopologyError(
                f"{where}: line {self.line}: <{self.tag}> without {attribute}; NCCL fills it in on the machine itself, "
                "so take the file that NCCL_TOPO_DUMP_FILE writes there",
                line=self.line,
                element=self.tag,
                attribute=attribute,
            )
        return value

    def whole(self, attribute: str, where: str, default: int | None = None) -> int:
        """A whole number ≥ 0, or -1 for 'unknown' as NCCL writes it. Raises TopologyError."""
        text = self.attributes.get(attribute, "").strip() if default is not None else self.need(attribute, where)
        if not text and default is not None:
            return default
        try:
            value = int(text, 0) if text.startswith("0x") else int(text)
        except ValueError:
            value = -2
        if not -1 <= value < 2**62:
            raise TopologyError(
                f"{where}: line {self.line}: <{self.tag}> {attribute}={text!r}; expected a whole number",
                line=self.line,
                element=self.tag,
                attribute=attribute,
            )
        return value


def parse_xml(text: str, where: str, root: str, deepest: int = 64) -> Element:
    """The root element, which must be called `root`. Raises TopologyError with the line."""
    parser = expat.ParserCreate()
    stack: list[Element] = []
    top: list[Element] = []

    def start(tag: str, attributes: dict[str, str]) -> None:
        element = Element(tag, attributes, parser.CurrentLineNumber)
        if len(stack) >= deepest:
            raise TopologyError(f"{where}: line {element.line}: elements nested more than {deepest} deep")
        (stack[-1].children if stack else top).append(element)
        stack.append(element)

    def doctype(*_: object) -> None:
        raise TopologyError(f"{where}: line {parser.CurrentLineNumber}: a document type is not allowed here")

    parser.StartElementHandler = start
    parser.EndElementHandler = lambda tag: stack.pop()
    parser.StartDoctypeDeclHandler = doctype
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise TopologyError(f"{where}: line {error.lineno}: broken XML: {expat.errors.messages[error.code]}") from None
    if top[0].tag != root:
        graph = " (a file of NCCL_GRAPH_DUMP_FILE; NCCL_TOPO_DUMP_FILE writes the topology)"
        hint = graph if top[0].tag == "graphs" else ""
        raise TopologyError(f"{where}: line {top[0].line}: root element <{top[0].tag}>, expected <{root}>{hint}")
    return top[0]
