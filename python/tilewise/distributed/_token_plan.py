"""Token plans: the balanced schedule of a mask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Optional, Sequence

from tilewise import _core
from tilewise._options import truth
from tilewise.distributed import _join
from tilewise.distributed._group import TIMEOUT, Group, checked_timeout, group_of
from tilewise.distributed._join import Join
from tilewise.distributed._tokens import counted

if TYPE_CHECKING:
    from typing_extensions import CapsuleType

    Array = Any

Side = Literal["queries", "keys"]
_SIDES = {"queries": _core.QUERIES, "keys": _core.KEYS}


class TokenPlanInfo(NamedTuple):
    """A token plan in numbers. Areas are visible pairs of a query and a key, summed over the heads if slices name
    heads."""

    q_len: int
    k_len: int
    size: int  # number of ranks
    chunk_rows: int  # queries that are dealt to a rank together
    stages: int  # in which a rank receives keys, after its own
    area: int
    largest_area: int  # of a rank
    area_lower_bound: int  # no deal of the chunks has a smaller largest area
    imbalance: float  # the largest area over the mean; 1 is perfect
    received_rows: int  # of keys, and as many of values, by all ranks


class RankInfo(NamedTuple):
    """A rank of a token plan in numbers. Rows are of keys, and as many of values: forward moves Hk (D + Dv) numbers
    for each, in the dtype of k; backward the same again, and as many gradients in float32 (float64) back."""

    q_rows: int  # tokens that it holds
    k_rows: int
    area: int
    sent_rows: int
    received_rows: int


class TokenPlan:
    """The balanced schedule of a mask, that of MagiAttention: which tokens each rank holds, and what it receives.

    Made once for a mask, for all layers, steps and both passes; attention() takes it as `token_plan`. Every rank makes
    the same plan by itself, without communication, from the same arguments. docs/distributed-magi.md describes it.
    """

    def __init__(
        self,
        q_len: int,
        k_len: Optional[int] = None,
        *,
        slices: Optional[Array] = None,
        causal: bool = False,
        window_size: Optional[Sequence[Optional[int]]] = None,
        alignment: Optional[Literal["bottom_right", "top_left"]] = None,
        cu_seqlens_q: Optional[Array] = None,
        cu_seqlens_k: Optional[Array] = None,
        heads: Optional[int] = None,
        group: Any = None,
        size: Optional[int] = None,
        rank: int = 0,
        chunk_rows: int = 0,
        stages: int = 0,
    ) -> None:
        """q_len: tokens of the whole. k_len: of the key axis, if that is another.

        slices, int64 (N, 5) or (N, 6): the mask, in positions of the whole: q0 q1 k0 k1 kind [head]. Without them
        causal, window_size and alignment are that of one sequence, or of each of the packed ones of cu_seqlens_q and
        cu_seqlens_k, which cover all tokens; cu_seqlens_k None: as cu_seqlens_q, if there are as many keys.
        heads: number of query heads, if slices name heads.
        group: as in attention(). size, rank: instead of a group, to look at a plan for any number of ranks.
        chunk_rows: queries that are dealt to a rank together; 0: some 16 chunks for each rank.
        stages: in which a rank receives keys; 0: up to 8.
        """
        if size is None:
            self.group: Optional[Group] = group_of(group)
            size, rank = self.group.size, self.group.rank
        elif group is not None:
            raise ValueError(f"size: is {size!r}, given together with a group, which says how many ranks there are")
        else:
            self.group = None
        k_len = q_len if k_len is None else k_len
        if cu_seqlens_k is None and q_len == k_len:
            cu_seqlens_k = cu_seqlens_q
        mask = {
            "slices": slices, "causal": causal, "window_size": window_size, "alignment": alignment,
            "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k,
        }  # fmt: skip
        self._plan = _core.make_token_plan("TokenPlan", mask, heads, (q_len, k_len, size, chunk_rows, stages))
        _core.token_plan_rank_info(self._plan, rank)  # refuses a rank that is none
        self.rank = rank
        self.info = TokenPlanInfo(*_core.token_plan_info(self._plan))

    def info_of(self, rank: Optional[int] = None) -> RankInfo:
        """Rows, area and traffic of a rank; None: of this one."""
        return RankInfo(*_core.token_plan_rank_info(self._plan, self.rank if rank is None else rank))

    def ranges_of(self, side: Side = "queries", rank: Optional[int] = None) -> list[tuple[int, int, int]]:
        """The tokens that a rank holds (None: this one), in the order of its rows: (begin, end, 1) of each range.

        side: "queries" or "keys"; both are the same if there are as many keys as queries.
        """
        if side not in _SIDES:
            raise ValueError(f"side: is {side!r}, must be 'queries' or 'keys'")
        return _core.token_plan_ranges(self._plan, _SIDES[side], self.rank if rank is None else rank)

    def positions(self, side: Side = "queries", *, cu_seqlens: Optional[Array] = None) -> Any:
        """Where the tokens of this rank stand in the whole, int64 (rows): what position embeddings need.

        cu_seqlens (B + 1): of packed sequences; positions then count from the start of each sequence. A tensor if the
        group is PyTorch's, else a NumPy array.
        """
        found = counted(_join.positions(self.ranges_of(side)), cu_seqlens)
        return found if self.group is None else self.group.array(found)

    def dispatch(self, x: Array, *, side: Side = "queries", dim: int = 0) -> Any:
        """This rank's tokens of x, which every rank holds whole. Does not communicate.

        dim: that of the tokens: 0 of packed (T, ...), 1 of (1, S, ...). Differentiable for tensors of PyTorch. The
        result may be a view of x.
        """
        ranges = self.ranges_of(side)
        length = self.info.q_len if side == "queries" else self.info.k_len
        if x.shape[dim] != length:
            raise ValueError(f"x: has {x.shape[dim]} tokens in dimension {dim}, must have the {length} of the plan")
        return _join.cut(x, ranges, dim)

    def undispatch(
        self, x: Array, *, side: Side = "queries", dim: int = 0, group: Any = None, timeout: float = TIMEOUT,
        sum_gradients: bool = True,
    ) -> Any:  # fmt: skip
        """The whole of which each rank holds the tokens x, on every rank. Collective.

        group: None is that of the plan. sum_gradients: as in unshard(), which says what is raised, too.
        """
        own = group_of(self.group if group is None else group)
        self.checked(own)
        ranges = [self.ranges_of(side, rank) for rank in range(self.info.size)]
        join = Join(own, lambda _: ranges, "token plan", dim, checked_timeout(timeout))
        return _join.joined(join, x, truth("sum_gradients", sum_gradients))

    def checked(self, group: Group) -> CapsuleType:
        """The library's plan. Raises ValueError if this rank of the group is another than the plan's."""
        if (group.rank, group.size) != (self.rank, self.info.size):
            raise ValueError(
                f"token_plan: is for rank {self.rank} of {self.info.size}, this is rank {group.rank} of {group.size}"
            )
        return self._plan
