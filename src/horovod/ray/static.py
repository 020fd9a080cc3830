"""Jobs of a fixed number of ranks: an actor each, which lives until the executor is shut down."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from horovod.errors import ConfigError, LaunchError
from horovod.ray import checks
from horovod.ray.adapter import Adapter, BaseParams, Callbacks, Constructor
from horovod.ray.coordinator import Coordinator
from horovod.ray.failures import ActorFailed, Member, await_members, first_answers, shipped
from horovod.ray.messages import listening
from horovod.ray.nodes import connection
from horovod.ray.strategy import BaseStrategy, ColocatedStrategy, PGStrategy
from horovod.ray.worker import RankCall
from horovod.runner.common.util.timeout import Timeout

__all__ = ["StaticAdapter", "StaticParams"]

_END_S = 5.0


@dataclass
class StaticParams(BaseParams):
    """Number of workers, and their places.

    Attributes:
        num_workers: in all; or
        num_hosts, num_workers_per_host: so many on each of so many nodes.
        use_current_placement_group: stay inside that of the caller, if there is one.

    Raises:
        ConfigError: the numbers contradict each other.
    """

    num_workers: int | None = None
    num_hosts: int | None = None
    num_workers_per_host: int = 1
    use_current_placement_group: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_workers is not None and self.num_hosts is not None:
            raise ConfigError(
                "num_workers and num_hosts exclude each other. With num_hosts the number of workers on each "
                "is num_workers_per_host."
            )
        for name in ("num_workers", "num_hosts", "num_workers_per_host"):
            if (count := getattr(self, name)) is not None:
                checks.count(name, count)

    def strategy(self, settings: Any) -> BaseStrategy:
        """Strategy that places the workers.

        Raises:
            ConfigError: it was not said how many there are.
        """
        own: dict[str, Any] = {
            "settings": settings,
            "use_gpu": self.use_gpu,
            "cpus_per_worker": self.cpus_per_worker,
            "gpus_per_worker": self.gpus_per_worker,
        }
        inherited = self.use_current_placement_group and ray.util.get_current_placement_group() is not None
        if self.num_hosts is not None and not inherited:
            return ColocatedStrategy(
                num_hosts=self.num_hosts, num_workers_per_host=self.num_workers_per_host, **own
            )
        count = self.num_workers
        if count is None:
            if self.num_hosts is None:
                raise ConfigError(
                    "RayExecutor: say how many workers there are: num_workers, num_hosts or min_workers."
                )
            count = self.num_hosts * self.num_workers_per_host
        return PGStrategy(
            num_workers=count, force_create_placement_group=not self.use_current_placement_group, **own
        )


class _Locks:
    """Of an executor; where it is sent to another process, as before its start, the copy has its own.

    Attributes:
        turn: of those that wait for results. A callback may call, too: it is on the thread that has the turn.
        order: calls reach all actors in one order, also those that nobody waits for.
    """

    def __init__(self) -> None:
        self.turn = threading.RLock()
        self.order = threading.Lock()

    def __reduce__(self) -> tuple[type[_Locks], tuple[()]]:
        return _Locks, ()


class StaticAdapter(Adapter):
    """The actors are the ranks: they keep their state, and their world, from one call to the next. Threads
    that call at once take turns, as an operation is made of what all ranks do in the same order.

    Args:
        settings: a :class:`MiniSettings`.
    """

    def __init__(self, params: StaticParams, settings: Any) -> None:
        self.params = params
        self.settings = settings
        self.settings.elastic = False
        self._strategy: BaseStrategy | None = None
        self._coordinator: Coordinator | None = None
        self._members: list[Member] = []
        self._broken = self._connection = ""
        self._locks = _Locks()

    def _start(self, constructor: Constructor | None, environment: dict[str, str]) -> None:
        if self._strategy is not None:
            raise LaunchError("RayExecutor: it is started already. Call shutdown() before start().")
        self._broken, self._connection = "", connection()
        self._strategy = self.params.strategy(self.settings)
        try:
            self._place(self._strategy, constructor, environment)
        except BaseException:
            self._broken = "the start has failed."
            self.shutdown()
            raise

    def _place(
        self, strategy: BaseStrategy, constructor: Constructor | None, environment: dict[str, str]
    ) -> None:
        workers, _ = strategy.create_workers()
        self._members = [Member(rank, "unknown", "unknown", worker) for rank, worker in enumerate(workers)]
        self._coordinator = coordinator = Coordinator(self.settings)
        limit = self.settings.start_timeout
        nodes = self._ask(workers, "node_id", limit)
        hostnames = self._ask(workers, "hostname", limit)
        self._members = [
            Member(rank, *each) for rank, each in enumerate(zip(nodes, hostnames, workers, strict=True))
        ]
        for member in self._members:
            coordinator.register(member.hostname, member.node_id, member.rank)
        places = coordinator.finalize_registration()
        shared = coordinator.establish_rendezvous()
        devices = self._devices(workers, nodes, limit)
        self._await(
            [
                worker.update_env_vars.remote({**shared, **places[rank], **devices[rank], **environment})
                for rank, worker in enumerate(workers)
            ],
            limit,
        )
        if constructor is not None:
            parts = shipped("RayExecutor.start", *constructor, parts=constructor)
            self._results([worker.start_executable.remote(*parts) for worker in workers], None)

    def _run(self, call: RankCall, callbacks: Callbacks | None) -> list[Any]:
        with self._locks.turn:
            members = self._able(call.what)
            with listening(members, callbacks) as tell:
                return self._results(self._submit(members, call), tell)

    def _run_remote(self, call: RankCall) -> list[Any]:
        return self._submit(self._able(call.what), call)

    def _run_single(self, call: RankCall) -> Any:
        with self._locks.turn:
            return self._results(self._submit(self._able(call.what)[:1], call), None)[0]

    def shutdown(self) -> None:
        """Ranks end in peace, unless one has failed: then at once."""
        members, self._members = self._members, []
        if self._connection != connection():  # ray.shutdown() has ended and freed all
            members, self._strategy = [], None
        if members and not self._broken:
            ray.wait(
                [member.actor.__ray_terminate__.remote() for member in members],
                num_returns=len(members),
                timeout=_END_S,
            )
        for member in members:
            ray.kill(member.actor)
        if self._strategy is not None:
            self._strategy.shutdown()
            self._strategy = None
        if self._coordinator is not None:
            self._coordinator.close()
            self._coordinator = None

    def _able(self, what: str) -> list[Member]:
        """The ranks, if they can be asked for something."""
        if self._strategy is None:
            raise LaunchError(f"RayExecutor.{what}: it is not started. Call start() before {what}().")
        if self._connection != connection():
            raise LaunchError(
                f"RayExecutor.{what}: ray.shutdown() has ended its actors. Call shutdown(), ray.init() and "
                "start() to have new ones."
            )
        if self._broken:
            raise LaunchError(
                f"RayExecutor.{what}: some ranks are gone since the last call, as {self._broken} "
                "Call shutdown() and start() to have new ones."
            )
        return self._members

    def _require(self, what: str) -> None:
        self._able(what)

    def _submit(self, members: Sequence[Member], call: RankCall) -> list[Any]:
        (function,) = shipped(f"RayExecutor.{call.what}", call.fn, call.args, call.kwargs, parts=(call,))
        with self._locks.order:
            return [member.actor.execute.remote(function) for member in members]

    def _results(self, references: Sequence[Any], tell: Callable[[], None] | None) -> list[Any]:
        """Of these calls, one of each rank, from the first on."""
        members = self._members[: len(references)]
        try:
            return await_members(references, members, tell)
        except ActorFailed as error:
            if error.ended:
                self._break(error)
            raise
        except BaseException:
            self._broken = "the last call was interrupted."
            raise

    def _break(self, error: ActorFailed) -> None:
        self._broken = str(error).partition("\n")[0]
        if self._coordinator is not None and error.rank is not None:
            self._coordinator.lost(error.rank, error.host or "", "has failed")

    def _devices(self, workers: Sequence[Any], nodes: Sequence[str], limit: Timeout) -> list[dict[str, str]]:
        """Variables that let each rank see all GPUs of the ranks of its node, so that they reach those of
        each other.
        """
        if not self.params.use_gpu:
            return [{} for _ in workers]
        there: dict[str, dict[str, None]] = {}
        for node, found in zip(nodes, self._ask(workers, "get_gpu_ids", limit), strict=True):
            there.setdefault(node, {}).update(dict.fromkeys(map(str, found)))
        return [{"CUDA_VISIBLE_DEVICES": ",".join(there[node])} for node in nodes]

    def _ask(self, workers: Sequence[Any], method: str, limit: Timeout) -> list[Any]:
        return self._await([getattr(worker, method).remote() for worker in workers], limit)

    def _await(self, references: Sequence[Any], limit: Timeout) -> list[Any]:
        """Answers of actors that have just been made."""
        return first_answers(
            references,
            limit.remaining(),
            "If importing takes them longer: create_settings(timeout_s=...).",
            limit_s=self.settings.timeout_s,
        )
