"""`[cluster] gossip = false`: the bus is not read, settings that need it are refused, and a warning names the loss."""

from __future__ import annotations

from pathlib import Path

from config.written import refused, write
from coordd.config import safety
from coordd.config.settings import load


def test_without_gossip_the_bus_is_not_read_and_a_warning_names_the_loss(tmp_path: Path) -> None:
    text = '[cluster]\ngossip = false\nbus = "amqp://far.example"\nledger = "redis://localhost/0"\n'

    loaded = load(write(tmp_path / "c.toml", text), {})

    assert (loaded.cluster.bus_urls, loaded.cluster.is_signed) == ((), False)
    [warning] = safety.warnings(loaded)
    assert warning.key == "cluster.gossip"
    assert "a dead node is noticed when its leases end" in warning.message
    published = '[jobs]\nbackend = "redis"\nurl = "redis://localhost/0"\n'
    assert "a published revision needs gossip" in refused(write(tmp_path / "d.toml", text + published))
    mirrored = text + '[mirror]\nurl = "bus"\n'
    assert "there is no gossip" in refused(write(tmp_path / "e.toml", mirrored))
