"""`--set`: every key that is accepted changes the machine or the codec, every other is refused (field case F104)."""

from __future__ import annotations

from contextlib import suppress
from functools import cache

import pytest

from zipplan.planner.costs import Rates, wire
from zipplan.planner.errors import ConfigError
from zipplan.planner.profiles import parse_profile
from zipplan.planner.schedule import Collective
from zipplan.planner.search import Search
from zipplan.planner.settings import SETTINGS, STEP_KEYS, Setting, Settings, find
from zipplan.planner.topology import Cluster, Machine, build_cluster, load_machine

# A machine that has a use for each key; lab and loopback have no GPU.
MACHINES = ("hgx-h100", "a6000x8-200g", "gh200-quad", "mi300x-8", "lab", "loopback")
VALUES = {"rate": "0.5x", "time": "1.5x", "share": "0.5x", "ratio": "0.9x", "times": "2", "count": "3"}
NAMES = {"fabric.routing": "hash", "transport.network": "efa", "gpu.model": "A100"}


def value_for(setting: Setting) -> str:
    if setting.unit == "switch":
        return "on" if setting.key in ("node.p2p", "fabric.sharp") else "off"
    return NAMES.get(setting.key) or VALUES[setting.unit]


def cluster_of(machine: Machine) -> Cluster:
    return build_cluster(machine, nodes=machine.fabric.default_nodes)


@cache
def unchanged(name: str) -> str:
    return cluster_of(load_machine(name)).fingerprint


def fingerprints(key: str, text: str) -> dict[str, str]:
    """Fingerprint of each machine that accepts the key."""
    found = {}
    for name in (*MACHINES, "pcie-4090x8"):
        with suppress(ConfigError):
            found[name] = cluster_of(Settings.read([f"{key}={text}"]).machine(load_machine(name))).fingerprint
    return found


@pytest.mark.parametrize("key", [k for k, s in SETTINGS.items() if s.change])
def test_an_accepted_key_makes_another_machine(key: str) -> None:
    """F104: the fingerprint moves, so no plan made with --set passes for one made without."""
    found = fingerprints(key, value_for(SETTINGS[key]))
    if key == "node.p2p":
        found.pop("a6000x8-200g")  # on already
    assert found, f"no shipped machine has a use for {key}"
    for name, fingerprint in found.items():
        assert fingerprint != unchanged(name), f"{key} changes nothing on {name}"


@pytest.mark.parametrize("key", [k for k in SETTINGS if k.startswith("codec.") and k not in STEP_KEYS])
def test_a_codec_key_changes_codec_numbers_alone(key: str) -> None:
    machine = load_machine("hgx-h100")
    settings = Settings.read([f"{key}=0.5x"])
    cluster, coded = build_cluster(machine), wire("window", "bf16", parse_profile("gaussian"))
    assert settings.machine(machine) == machine
    rates = Rates.of(cluster, "window")
    assert (settings.rates(rates), settings.wire(coded)) != (rates, coded)
    assert settings.wire(wire("raw", "bf16", parse_profile("gaussian"))).ratio == 1
    assert settings.beside_machine == settings


def test_settings_are_of_the_machine_the_codec_or_the_ranks() -> None:
    assert {k.partition(".")[0] for k, s in SETTINGS.items() if not s.change} == {"codec", "ranks", "transport"}


def simulated(topology: str, collective: Collective, *changes: str, nodes: int = 1) -> int:
    settings = Settings.read(changes)
    cluster = build_cluster(settings.machine(load_machine(topology)), nodes=nodes)
    search = Search(cluster, collective, "bf16", parse_profile("gaussian"), settings=settings)
    return search.run(search.schedules[0], 256 << 20).time


def test_limits_of_the_transport_change_times() -> None:
    """The examples of the command line's contract: --set nvls=off, --set channels=8."""
    reduce = Collective.ALL_REDUCE
    assert simulated("hgx-h100", reduce, "nvls=off") > simulated("hgx-h100", reduce)
    times = [simulated("hgx-b200", reduce, f"channels={n}") for n in (1, 2, 4, 8)]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[3] > simulated("hgx-b200", reduce, "nvls=off") * 0.5
    assert simulated("hgx-h100", reduce, "transport.start=framework") > simulated("hgx-h100", reduce)


@pytest.mark.parametrize(
    ("topology", "text", "words"),
    [
        ("hgx-b200", "channels=64", "uses 32 channels"),
        ("lab", "channels=8", "would change nothing"),
        ("lab", "transport.start=threads", "runs gloo"),
        ("hgx-h100", "transport.start=magic", "valid: framework, process, threads"),
    ],
)
def test_limits_that_would_change_nothing_are_refused(topology: str, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        simulated(topology, Collective.ALL_GATHER, text)


def test_all_tokens_on_one_expert_make_one_link_hot() -> None:
    """F042: 8 ranks, 4,096 tokens of 7,168 bf16 each: the more one expert gets, the longer, by its link."""
    cluster = build_cluster(load_machine("hgx-h100"))
    size = 4096 * 7168 * 2
    times = []
    for load in (1, 1.5, 2.7, 8):  # uniform, Zipf-like, all to one
        settings = Settings.read([f"ranks.load={load}"])
        search = Search(cluster, Collective.ALL_TO_ALL, "bf16", parse_profile("gaussian"), settings=settings)
        native = search.run(search.schedules[0], size)
        times.append(native.time)
        (hot,) = search.fullest(native, 1)
        assert load == 1 or "gpu7" in hot.link.name
    assert times == sorted(times)
    assert times[-1] > 5 * times[0]


def test_a_late_rank_keeps_all_waiting() -> None:
    cluster = build_cluster(load_machine("lab"), nodes=4)
    times = []
    for late in ("0us", "1ms"):
        search = Search(cluster, Collective.ALL_GATHER, "bf16", parse_profile("gaussian"),
                        settings=Settings.read([f"ranks.late={late}"]))  # fmt: skip
        times.append(search.run(search.schedules[0], 1 << 20).time)
    assert times[1] == times[0] + 10**9


def test_values_are_absolute_or_factors() -> None:
    machine = load_machine("hgx-h100")
    assert Settings.read(["link.nic.bandwidth=25GB/s"]).machine(machine) == Settings.read(
        ["link.nic.bandwidth=0.5x"]
    ).machine(machine)
    whole = Settings.read(["link.nvlink.bandwidth=450GB/s"]).machine(machine)
    assert cluster_of(whole).fingerprint == unchanged("hgx-h100")  # 18 lanes of 25 GB/s
    settings = Settings.read(["codec.encode=150GB/s", "codec.launch=0ps"])
    rates = settings.rates(Rates.of(build_cluster(machine)))
    assert (rates.encode, rates.launch) == (150e9, 0)
    assert Settings.read(["codec.ratio=1.25"]).wire(wire("window", "bf16", parse_profile("relu"))).ratio == (
        pytest.approx(1.25)
    )


def test_a_key_may_drop_its_first_part_where_that_is_clear() -> None:
    assert find("oversubscription") is find("fabric.oversubscription")
    with pytest.raises(ConfigError, match=r"ambiguous: transport\.launch or codec\.launch"):
        find("launch")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("link.nics.bandwidth=1GB/s", r"did you mean link\.nic\.bandwidth"),
        ("bandwidth", "KEY=VALUE"),
        ("link.nic.bandwidth=", "KEY=VALUE"),
        ("link.nic.bandwidth=400G", r"link\.nic\.bandwidth.*says bits or bytes"),
        ("link.nic.bandwidth=0GB/s", "not above zero"),
        ("link.nic.bandwidth=-1x", "a factor above 0"),
        ("link.nic.bandwidth=nanx", "a factor above 0"),
        ("codec.ratio=0", "above 0"),
        ("codec.ratio=inf", "above 0"),
        ("efficiency_intra=1.1", "up to 1"),
        ("fabric.pxn=maybe", "on or off"),
        ("fabric.spines=0", "whole number from 1"),
        ("fabric.oversubscription=0.5", "from 1"),
        ("transport.launch=3", "ps, ns, us"),
        ("ranks.load=0.5", "from 1"),
        ("ranks.late=2x", "ps, ns, us"),
    ],
)
def test_bad_texts_are_refused(text: str, words: str) -> None:
    """F112 and F114 at this door too: no NaN, no infinity, no zero rate, no ambiguous unit."""
    with pytest.raises(ConfigError, match=words):
        Settings.read([text])


@pytest.mark.parametrize(
    ("machine", "text", "words"),
    [
        ("lab", "link.nvlink.latency=1us", "lab has no nvlink links"),
        ("lab", "gpu.model=H100", "lab has no GPU"),
        ("lab", "transport.network=efa", "runs gloo"),
        ("hgx-a100", "nvls=off", "no NVSwitch that reduces"),
        ("hgx-h100", "transport.network=token-ring", "valid: efa, infiniband, slingshot"),
        ("lab", "link.loopback.latency=2x", "2x of that is 0"),
        ("loopback", "link.nic.latency=1us", "no NIC in use"),
        ("loopback", "link.loopback.latency=1us", "unlike values"),
        ("hgx-h100", "node.p2p=off", "something else than PCIe"),
        ("hgx-h100", "fabric.local_bandwidth=1GB/s", "kind 'rail'"),
        ("hgx-h100", "fabric.routing=random", "valid: hash, modulo"),
    ],
)
def test_a_machine_refuses_what_it_has_no_use_for(machine: str, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Settings.read([text]).machine(load_machine(machine))


def test_a_key_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="given twice"):
        Settings.read(["codec.ratio=1.3", "codec.ratio=1.4"])
