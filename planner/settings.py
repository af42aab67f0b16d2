"""`--set KEY=VALUE`: every parameter of topology, transport and codec that can be changed without a file of one's own.

One registry: commands, `zipplan whatif`, sensitivity and the table in docs/what-if.md all read `SETTINGS`.
A value is absolute (25GB/s, 3us, 0.9, off) or a factor of what the machine has (0.5x).
A key that a machine has no use for is refused: nothing that is accepted is ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from zipplan.planner.calibration import Calibration
from zipplan.planner.contention import Shares
from zipplan.planner.costs import Rates, Wire
from zipplan.planner.errors import ConfigError, nearest
from zipplan.planner.simulate import Skew
from zipplan.planner.topology import Cluster, Gpu, Machine
from zipplan.planner.topology.model import LINK_KINDS, Network
from zipplan.planner.transport import Transport
from zipplan.planner.units import parse_bandwidth, parse_time

SOURCE = "changed by --set"


@dataclass(frozen=True, slots=True)
class Value:
    """A parsed value: `of(now)` gives the new number for the present one."""

    text: str
    fixed: Any = None
    factor: float = 1.0

    def of(self, now: Any) -> Any:
        """The fixed value, or `now` scaled; whole numbers stay whole and at least 1 unless they were 0."""
        if self.fixed is not None:
            return self.fixed
        scaled = now * self.factor
        return scaled if isinstance(now, float) else max(min(now, 1), round(scaled))


Apply = Callable[[Machine, Value], Machine]


@dataclass(frozen=True, slots=True)
class Setting:
    """One key. `change` makes another machine; what is not part of a machine has none: see `Settings`."""

    key: str
    unit: str
    about: str
    change: Apply | None = None

    @property
    def scales(self) -> bool:
        """Whether a factor (0.5x) makes sense."""
        return _UNITS[self.unit][0]

    def parse(self, text: str) -> Value:
        """Raises ConfigError naming the key."""
        text = text.strip()
        if self.scales and text[-1:] in ("x", "×"):
            return Value(text, factor=_number(self.key, text[:-1], "a factor above 0, such as 0.5x"))
        return Value(text, fixed=_UNITS[self.unit][1](self.key, text))


def _number(key: str, text: str, expected: str, low: float = 0.0, high: float = math.inf) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and low < value <= high):
        raise ConfigError(f"{key}: cannot use {text!r}; expected {expected}")
    return value


def _switch(key: str, text: str) -> bool:
    words = {"on": True, "off": False, "true": True, "false": False, "1": True, "0": False}
    if text.lower() not in words:
        raise ConfigError(f"{key}: cannot use {text!r}; expected on or off")
    return words[text.lower()]


def _count(key: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{key}: cannot use {text!r}; expected a whole number from 1")
    return int(text)


# unit → (takes a factor, parser, what the table says)
_UNITS: dict[str, tuple[bool, Callable[[str, str], Any], str]] = {
    "rate": (True, lambda key, text: parse_bandwidth(text, key), "25GB/s, 400Gb/s or 0.5x"),
    "time": (True, lambda key, text: parse_time(text, key), "3us or 0.5x"),
    "share": (True, lambda key, text: _number(key, text, "a share above 0 and up to 1", high=1.0), "0.9 or 0.5x"),
    "part": (False, lambda key, text: _number(key, text, "a share above 0 and up to 1", high=1.0), "0.25"),
    "ratio": (True, lambda key, text: _number(key, text, "raw / encoded bytes, above 0"), "1.4 or 0.9x"),
    "times": (True, lambda key, text: _number(key, text, "a number from 1", low=math.nextafter(1.0, 0)), "2 or 1.5x"),
    "delay": (False, lambda key, text: parse_time(text, key), "50us"),
    "count": (False, _count, "8"),
    "switch": (False, _switch, "on or off"),
    "name": (False, lambda key, text: text, "a name"),
}


def _refuse(machine: Machine, key: str, why: str) -> ConfigError:
    return ConfigError(f"{key}: {machine.name} {why}, so this key would change nothing")


def _scaled(machine: Machine, key: str, value: Value, present: Iterable[int]) -> None:
    """An absolute value must not level links that are unlike, and a factor of 0 is 0."""
    unlike = sorted(set(present))
    if value.fixed is None and unlike == [0]:
        raise ConfigError(f"{key}: {machine.name} has 0 here, and {value.text} of that is 0; give a value")
    if value.fixed is not None and len(unlike) > 1:
        raise ConfigError(
            f"{key}: {machine.name} has {len(unlike)} unlike values here ({', '.join(map(str, unlike))} in bytes/s or "
            f"ps), {value.text} would make them one; give a factor such as 0.5x"
        )


def _link(kind: str, field: str) -> Apply:
    key = f"link.{kind}.{field}"

    def change(machine: Machine, value: Value) -> Machine:
        now = machine.link_bandwidth if field == "bandwidth" else machine.link_latency
        rows = [row for node in machine.node for row in node.link if row.kind == kind]
        if not rows:
            raise _refuse(machine, key, f"has no {kind} links inside its nodes")
        _scaled(machine, key, value, map(now, rows))

        def changed(row: Any) -> Any:
            if row.kind != kind:
                return row
            lanes = {"lanes": 1} if field == "bandwidth" else {}
            return row.model_copy(update={field: value.of(now(row)), "source": SOURCE, **lanes})

        nodes = (node.model_copy(update={"link": tuple(map(changed, node.link))}) for node in machine.node)
        return machine.model_copy(update={"node": tuple(nodes)})

    return change


def _nic(field: str) -> Apply:
    key = f"link.nic.{field}"

    def change(machine: Machine, value: Value) -> Machine:
        from zipplan.planner.topology.catalogue import link_facts

        def now(row: Any) -> int:
            present: int | None = getattr(row, field)
            return link_facts("nic").latency if present is None else present

        used = [row for node in machine.node for row in node.nic if row.use]
        if not used:
            raise _refuse(machine, key, "has no NIC in use")
        _scaled(machine, key, value, map(now, used))

        def changed(row: Any) -> Any:
            return row.model_copy(update={field: value.of(now(row)), "source": SOURCE}) if row.use else row

        nodes = (node.model_copy(update={"nic": tuple(map(changed, node.nic))}) for node in machine.node)
        return machine.model_copy(update={"node": tuple(nodes)})

    return change


def _fabric(field: str, kinds: tuple[str, ...]) -> Apply:
    def change(machine: Machine, value: Value) -> Machine:
        from zipplan.planner.topology.catalogue import link_facts

        fabric = machine.fabric
        if fabric.kind not in kinds:
            raise _refuse(machine, f"fabric.{field}", f"has a fabric of kind {fabric.kind!r}, not {' or '.join(kinds)}")
        if field == "routing" and value.fixed not in ("modulo", "hash"):
            raise ConfigError(f"fabric.routing: unknown {value.text!r}; valid: hash, modulo")
        now = getattr(fabric, field)
        new = value.of(link_facts("fabric").latency if now is None else now)
        if field == "oversubscription":
            new = max(1.0, new)
        return machine.model_copy(update={"fabric": fabric.model_copy(update={field: new, "source": SOURCE})})

    return change


def _transport(field: str) -> Apply:
    def change(machine: Machine, value: Value) -> Machine:
        new = value.of(getattr(machine.full_transport(), field))
        if field.startswith("efficiency"):
            new = min(1.0, new)
        return machine.model_copy(update={"transport": machine.transport.model_copy(update={field: new})})

    return change


def _nvls(machine: Machine, value: Value) -> Machine:
    plain = machine.transport.model_copy(update={"nvls": None})
    if not machine.model_copy(update={"transport": plain}).full_transport().nvls:
        raise _refuse(machine, "transport.nvls", "has no NVSwitch that reduces")
    return machine.model_copy(update={"transport": machine.transport.model_copy(update={"nvls": value.fixed})})


def _network(machine: Machine, value: Value) -> Machine:
    if machine.transport.kind != "nccl":
        raise _refuse(machine, "transport.network", f"runs {machine.transport.kind}, not nccl")
    if value.fixed not in get_args(Network):
        raise ConfigError(f"transport.network: unknown {value.text!r}; {nearest(value.text, get_args(Network))}")
    return machine.model_copy(update={"transport": machine.transport.model_copy(update={"network": value.fixed})})


def _gpu(field: str) -> Apply:
    def change(machine: Machine, value: Value) -> Machine:
        if machine.gpu is None:
            raise _refuse(machine, f"gpu.{field}", "has no GPU")
        if field == "model":
            return machine.model_copy(update={"gpu": Gpu.model_validate({"model": value.fixed})})
        now = getattr(machine.gpu, field)
        return machine.model_copy(update={"gpu": machine.gpu.model_copy(update={field: value.of(now)})})

    return change


def _sharp(machine: Machine, value: Value) -> Machine:
    fabric, transport = machine.fabric, machine.transport
    if fabric.kind not in _SHARP or (transport.kind, transport.network) != ("nccl", "infiniband"):
        raise _refuse(machine, "fabric.sharp", "has no InfiniBand switches")
    return machine.model_copy(update={"fabric": fabric.model_copy(update={"sharp": value.fixed, "source": SOURCE})})


def _peer_to_peer(machine: Machine, value: Value) -> Machine:
    if machine.gpu is None or any(row.kind in ("nvlink", "xgmi") for node in machine.node for row in node.link):
        raise _refuse(machine, "node.p2p", "joins its ranks by something else than PCIe")
    nodes = (node.model_copy(update={"p2p": value.fixed}) for node in machine.node)
    return machine.model_copy(update={"node": tuple(nodes)})


_TIERED = ("rail", "tree")
_SHARP = ("switch", "rail", "tree", "graph")
_SWITCHED = ("rail", "tree", "dragonfly", "graph")
_RATE = "one direction of one link, all lanes"

SETTINGS: dict[str, Setting] = {
    setting.key: setting
    for setting in (
        Setting("link.nic.bandwidth", "rate", "every NIC in use, one direction", _nic("bandwidth")),
        Setting("link.nic.latency", "time", "every NIC in use", _nic("latency")),
        *(Setting(f"link.{k}.bandwidth", "rate", f"{k}: {_RATE}", _link(k, "bandwidth")) for k in LINK_KINDS),
        *(Setting(f"link.{k}.latency", "time", f"{k}: one hop", _link(k, "latency")) for k in LINK_KINDS),
        Setting("fabric.oversubscription", "times", "leaf downlinks / uplinks", _fabric("oversubscription", _TIERED)),
        Setting("fabric.spines", "count", "spine switches", _fabric("spines", _TIERED)),
        Setting("fabric.nodes_per_leaf", "count", "nodes below one leaf switch", _fabric("nodes_per_leaf", _TIERED)),
        Setting("fabric.latency", "time", "one link between switches", _fabric("latency", _SWITCHED)),
        Setting("fabric.local_bandwidth", "rate", "inside a group", _fabric("local_bandwidth", ("dragonfly",))),
        Setting("fabric.global_bandwidth", "rate", "between two groups", _fabric("global_bandwidth", ("dragonfly",))),
        Setting("fabric.routing", "name", "modulo (InfiniBand) or hash (Ethernet)", _fabric("routing", _SWITCHED)),
        Setting("fabric.pxn", "switch", "to another rail over NVLink first", _fabric("pxn", ("rail",))),
        Setting("fabric.sharp", "switch", "the switches reduce (InfiniBand SHARP): CollNet, NVLS across nodes", _sharp),
        Setting("node.p2p", "switch", "PCIe peers reach each other without host memory", _peer_to_peer),
        Setting("gpu.model", "name", "another GPU: memory, lanes, efficiency of the catalogue", _gpu("model")),
        Setting("gpu.hbm_bandwidth", "rate", "memory of the GPU, which bounds codec and copies", _gpu("hbm_bandwidth")),
        Setting("transport.launch", "time", "fixed cost of one collective call", _transport("launch")),
        Setting("transport.step_intra", "time", "one step inside a node", _transport("step_intra")),
        Setting("transport.step_inter", "time", "one step across nodes", _transport("step_inter")),
        Setting("transport.efficiency_intra", "share", "of the link rate, in a node", _transport("efficiency_intra")),
        Setting("transport.efficiency_inter", "share", "of the rate across nodes", _transport("efficiency_inter")),
        Setting("transport.nvls", "switch", "the NVSwitch reduces and multicasts (NVLink SHARP)", _nvls),
        Setting("transport.network", "name", "infiniband (RoCE too), efa or slingshot", _network),
        Setting("transport.channels", "count", "at most so many channels (NCCL_MAX_NCHANNELS)"),
        Setting("transport.start", "name", "who calls NCCL: process, threads or framework"),
        Setting("codec.speed", "rate", "encode and decode, raw bytes on one rank"),
        Setting("codec.encode", "rate", "encode, raw bytes on one rank"),
        Setting("codec.decode", "rate", "decode, raw bytes on one rank"),
        Setting("codec.launch", "time", "fixed cost of one codec or copy stage"),
        Setting("codec.ratio", "ratio", "raw / encoded bytes, instead of the profile's"),
        Setting("codec.sm_share", "part", "of a step: SMs that codec kernels get while compute runs beside them"),
        Setting("transport.sm_share", "part", "of a step: SMs that a collective's transfers hold, of all"),
        Setting("ranks.load", "times", "what the busiest rank sends, over the mean"),
        Setting("ranks.late", "delay", "how long all wait for the busiest rank to begin"),
    )
}  # fmt: skip
"""Every key, in the order of the documentation."""
STEP_KEYS = ("codec.sm_share", "transport.sm_share")
"""Keys that count only in a training step."""


def find(name: str) -> Setting:
    """The setting of a key, or of its last part where only one key ends so. Raises ConfigError with the nearest."""
    if name in SETTINGS:
        return SETTINGS[name]
    ends = [s for s in SETTINGS.values() if s.key.partition(".")[2] == name]
    if len(ends) == 1:
        return ends[0]
    if ends:
        raise ConfigError(f"--set: {name!r} is ambiguous: {' or '.join(s.key for s in ends)}")
    raise ConfigError(f"--set: no parameter {name!r}; {nearest(name, SETTINGS)}")


@dataclass(frozen=True)
class Settings:
    """Keys with their values, in the order given; a later one works on what the earlier made.

    They change what the machine file or, where there is one, the calibration says.
    """

    values: tuple[tuple[str, str], ...] = ()
    calibration: Calibration | None = None

    @classmethod
    def read(cls, texts: Iterable[str], calibration: str | Path | None = None) -> Settings:
        """From 'KEY=VALUE' texts and a calibration file.

        Raises ConfigError for an unknown key, a bad value, a key given twice, a file that is none.
        """
        pairs: dict[str, str] = {}
        for text in texts:
            name, equals, value = text.partition("=")
            if not equals or not value.strip():
                raise ConfigError(f"--set: cannot read {text!r}; expected KEY=VALUE, such as link.nic.bandwidth=25GB/s")
            setting = find(name.strip())
            setting.parse(value)
            if setting.key in pairs:
                raise ConfigError(f"--set: {setting.key} is given twice")
            pairs[setting.key] = value.strip()
        return cls(tuple(pairs.items()), None if calibration is None else Calibration.load(calibration))

    def machine(self, machine: Machine) -> Machine:
        """The changed machine. Raises ConfigError when it has no use for a key."""
        for key, text in self.values:
            setting = SETTINGS[key]
            if setting.change is not None:
                machine = setting.change(machine, setting.parse(text))
        return machine

    def shares(self) -> tuple[Shares, Settings]:
        """What overlap costs a step, and the settings that its collectives are planned with."""
        given = {key: SETTINGS[key].parse(text) for key, text in self.values if key in STEP_KEYS}
        codec, transport = (given.get(key) for key in STEP_KEYS)
        shares = Shares(codec.fixed if codec else 1.0, transport.fixed if transport else None)
        return shares, replace(self, values=tuple((k, v) for k, v in self.values if k not in STEP_KEYS))

    def transport(self, cluster: Cluster, algorithm: str) -> Transport:
        """The transport with its limits, and with measured times where there is a calibration.

        Raises ConfigError when a limit changes nothing on this cluster, for a calibration of another job.
        """
        given = dict(self.values)
        if found := [key for key in STEP_KEYS if key in given]:
            raise ConfigError(f"{found[0]}: counts only where compute runs beside a collective; add --workload")
        channels = int(given["transport.channels"]) if "transport.channels" in given else None
        if "transport.start" in given and cluster.transport.kind != "nccl":
            raise _refuse(cluster.machine, "transport.start", f"runs {cluster.transport.kind}, not nccl")
        made = Transport(cluster, algorithm, channels=channels, start=given.get("transport.start", "process"))
        used = made.constants.channels
        if channels and (channels >= used or made.running.protocols == made.constants.protocols):
            why = f"uses {used} channels and knows no lower rate for {channels}"
            raise _refuse(cluster.machine, "transport.channels", why)
        return self.calibration.transport_of(made) if self.calibration else made

    def rates(self, rates: Rates) -> Rates:
        """Codec speed of one rank."""
        for key, text in self.values:
            value = SETTINGS[key].parse(text)
            match key:
                case "codec.speed":
                    rates = replace(
                        rates, encode=value.of(rates.encode), decode=value.of(rates.decode), decode_reduce=None
                    )
                case "codec.encode":
                    rates = replace(rates, encode=value.of(rates.encode))
                case "codec.decode":
                    rates = replace(rates, decode=value.of(rates.decode), decode_reduce=None)
                case "codec.launch":
                    rates = replace(rates, launch=value.of(rates.launch))
        return rates

    def wire(self, wire: Wire) -> Wire:
        """Expected sizes of a codec; raw stays raw. Both regions shrink or grow alike."""
        for key, text in self.values:
            if key == "codec.ratio" and wire.codec != "raw":
                scale = wire.ratio / SETTINGS[key].parse(text).of(wire.ratio)
                wire = replace(wire, static_share=wire.static_share * scale, dynamic_share=wire.dynamic_share * scale)
        return wire

    def skew(self, ranks: int) -> Skew | None:
        """How the ranks differ; None when they do not."""
        given = {key: SETTINGS[key].parse(text) for key, text in self.values if key.startswith("ranks.")}
        load, late = given.get("ranks.load"), given.get("ranks.late")
        return Skew.busiest(ranks, load.of(1.0) if load else 1.0, late.fixed if late else 0)

    def __str__(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.values)

    @property
    def beside_machine(self) -> Settings:
        """What does not show in the machine's fingerprint."""
        return replace(self, values=tuple((k, v) for k, v in self.values if SETTINGS[k].change is None))


UNCHANGED = Settings()


def rows() -> list[tuple[str, str, str]]:
    """(key, values, meaning) of every setting, for help and documentation."""
    return [(s.key, _UNITS[s.unit][2], s.about) for s in SETTINGS.values()]
