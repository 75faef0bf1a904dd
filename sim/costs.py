"""Expected costs from the profiles, for routers that need them (`policies.interfaces.CostModel`)."""

from __future__ import annotations

from collections.abc import Sequence

from policies.interfaces import Alike
from policies.vocabulary import NS_PER_S, WorkKey
from sim.network import Attachment, Interconnect
from sim.tables import DeviceTables, KeyTable


class ProfileCosts:
    """The costs on otherwise idle devices.

    Args:
        devices: for each server, the tables of its device.
        batch_limits: for each server, its batch limit.
        attachments: for each server, its connection to the network.

    Attributes:
        alike: servers with the very same tables of their devices, the same batch limit and the same links.
    """

    def __init__(
        self, devices: Sequence[DeviceTables], batch_limits: Sequence[int], attachments: Sequence[Attachment]
    ) -> None:
        self._devices = tuple(devices)
        self._batch_limits = tuple(batch_limits)
        self._network = Interconnect(tuple(attachments))
        models = [each.profile.model for each in devices]
        sizes = [(model.input_bytes, model.widths, model.activation_bytes) for model in models]
        self.alike = Alike.of(
            devices=zip(map(id, devices), batch_limits, strict=True),
            links=[(each.link, each.uplink, size) for each, size in zip(attachments, sizes, strict=True)],
            racks=[each.rack for each in attachments],
        )
        self._handovers_ns = [round(_mean(each.there_ns) + _mean(each.back_ns)) for each in self._devices]

    def batch_s(self, server: int, key: WorkKey, batch: int) -> float:
        """Return the time until a batch is back: handover, dispatch, solo latency; above the limit, several batches in
        a row."""
        whole, rest = divmod(batch, self._batch_limits[server])
        total_ns = self._handovers_ns[server] + whole * self._batch_ns(server, key, self._batch_limits[server])
        return (total_ns + (self._batch_ns(server, key, rest) if rest else 0)) / NS_PER_S

    def image_s(self, server: int, key: WorkKey) -> float:
        """Return one image's share of a full batch."""
        limit = self._batch_limits[server]
        return self._batch_ns(server, key, limit) / limit / NS_PER_S

    def energy_j(self, server: int, key: WorkKey) -> float:
        """Return one image's share of a full batch's energy above idle; the effect of a power cap is left out."""
        table, limit = self._table(server, key), self._batch_limits[server]
        padded = self._padded(server, limit)
        return table.power_mw[padded] / 1000 * (table.latency_ns[padded] / NS_PER_S) / limit

    def transfer_s(self, source: int, server: int, segment: int, previous_width: float, images: int) -> float:
        """Return the transfer time on a free medium; 0 if the inputs are there already."""
        if source == server:
            return 0.0
        moved_bytes = images * input_bytes(self._devices[server], segment, previous_width)
        return self._network.duration_s(source, server, moved_bytes)

    def uplink_s(self, source: int, server: int, segment: int, previous_width: float) -> float:
        """Return the time of one image's transfer on the uplink of the server's rack; 0 if it uses none."""
        return self._network.uplink_s(source, server, input_bytes(self._devices[server], segment, previous_width))

    def _batch_ns(self, server: int, key: WorkKey, batch: int) -> int:
        padded = self._padded(server, batch)
        return self._devices[server].dispatch_ns + self._table(server, key).latency_ns[padded]

    def _table(self, server: int, key: WorkKey) -> KeyTable:
        return self._devices[server].keys[key.segment, key.width, key.previous_width]

    def _padded(self, server: int, batch: int) -> int:
        """Return the padded size on the device."""
        return next((size for size in self._devices[server].padded_sizes if size >= batch), batch)


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values) if values else 0.0


def input_bytes(tables: DeviceTables, segment: int, previous_width: float) -> int:
    """Return the bytes of one request's input to a segment: its image, or the activations of the previous segment."""
    model = tables.profile.model
    if segment == 1:
        return model.input_bytes
    return model.activation_bytes[segment - 2][model.widths.index(previous_width)]
