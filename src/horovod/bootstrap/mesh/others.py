"""The other ranks as one rank knows them from their identities, and the ways to reach them."""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from horovod.bootstrap.network import listening as network
from horovod.bootstrap.network.routes import Route, numeric_routes
from horovod.bootstrap.place.addresses import Address, own_addresses
from horovod.bootstrap.trust.protection import agreed, level_between, with_cipher
from horovod.config import Config
from horovod.errors import BackendError, ConfigError

__all__ = ["Others"]


class Others:
    """As rank ``rank`` sees them.

    Args:
        rank: this one.
        config: its settings.
        identities: of all ranks; see ``identity.own_identity``.
    """

    def __init__(self, rank: int, config: Config, identities: Sequence[dict[str, Any]]) -> None:
        self._rank = rank
        self._config = config
        self._identities = identities
        self._own: list[Address] | None = None

    @property
    def me(self) -> str:
        """This rank, with a capital."""
        return f"R{self.name(self._rank)[1:]}"

    def name(self, rank: int) -> str:
        """``rank 3 on host b``."""
        return f"rank {rank} on host {self._identities[rank]['place']['host']}"

    def same_machine(self, rank: int) -> bool:
        """Return whether ``rank`` is reached over loopback."""
        return self._namespace(rank) == self._namespace(self._rank)

    def agreed(self, what: str, variable: str) -> int:
        """A setting that must be the same for all.

        Raises:
            ConfigError: ranks were told different things.
        """
        mine: int = self._identities[self._rank][what]
        for rank, identity in enumerate(self._identities):
            if identity[what] != mine:
                raise ConfigError(
                    f"{variable} is {identity[what]} for {self.name(rank)} and {mine} for "
                    f"{self.name(self._rank)}: it must be the same for every rank.",
                    variable=variable,
                )
        return mine

    def levels(self, others: Iterable[int]) -> dict[int, str]:
        """Return the level of protection of the connections to each of ``others``.

        Raises:
            ConfigError: ranks were told different things, or one cannot do it.
        """
        names = [self.name(rank) for rank in range(len(self._identities))]
        setting = agreed([identity["protection"] for identity in self._identities], self._rank, names)
        levels = {}
        for other in others:
            levels[other] = level_between(setting, same_machine=self.same_machine(other))
            for each in (self._rank, other):
                with_cipher(self._identities[each]["missing_cipher"], names[each], levels[other])
        return levels

    def listen(self, dialers: Collection[int]) -> list[socket.socket]:
        """For ``dialers``, where they come from.

        Raises:
            BackendError: the system refuses.
        """
        if not dialers:
            return []
        elsewhere = {
            host
            for each in dialers
            if not self.same_machine(each)
            for host in self._identities[each]["addresses"]
        }
        own = self._identities[self._rank]["addresses"]
        here = any(self.same_machine(each) for each in dialers)
        chosen = bool(self._config.network_interface)
        try:
            return network.listen_at(network.listening_hosts(own, elsewhere, chosen=chosen, here=here))
        except OSError as error:
            raise BackendError(
                f"{self.me} cannot listen for other ranks: {error}", library="system", code=error.errno
            ) from error

    def routes(self, rank: int, offered: Sequence[tuple[str, int]]) -> list[Route]:
        """The ways to ``rank``, which listens at ``offered``."""
        if self._own is None:
            self._own = own_addresses()
        return numeric_routes(offered, self._own, same_machine=self.same_machine(rank))

    def unreachable(self, rank: int, tried: str) -> str:
        """The sentence for it."""
        return (
            f"{self.me} cannot connect to {self.name(rank)} at "
            f"{tried or 'any address: it offers none outside its host'}. If that rank is running, is there a "
            "firewall between the hosts? HOROVOD_GLOO_IFACE names the interfaces to use."
        )

    def _namespace(self, rank: int) -> tuple[str, int]:
        """Return the namespace of ``rank``; ranks with the same one reach each other over loopback."""
        machine = self._identities[rank]["machine"]
        return machine["boot_id"], machine["net_namespace"]
