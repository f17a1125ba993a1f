"""For tests: owners of a step's time found event by event, as slowly and plainly as can be."""

from collections import defaultdict

from profstack.readers.torchtrace.events import ACCUMULATE, EVALUATE
from profstack.storage import vocabulary
from profstack.storage.vocabulary import BACKWARD_RANGE, MODULE_PREFIX, OUTSIDE, UNATTRIBUTED

KINDS = ("call", "again", "function", "pass", "update", "region")
CALL, AGAIN, FUNCTION, PASS, UPDATE, REGION = KINDS
CALLS = (CALL, AGAIN)


class Naive:
    """What `attribute` must find. Events are named by their positions, None is none."""

    def __init__(self, host, edges, left_out, main):
        self.edges, self.left_out, self.main = edges, left_out, main
        self.name = [host.names.values[number] for number in host.names.ids]
        self.start, self.end, self.thread = map(list, (host.start, host.end, host.thread))
        self.sequence, self.parent = host.sequence.tolist(), host.parent.tolist()
        self.made_on = host.integers("fwd_thread_id").tolist()
        self.nbytes = host.integers("nbytes").tolist()
        self.device = host.integers("device_index").tolist()
        self.all = range(len(self.name))
        self.around = {at: self._around(at) for at in self.all}
        self.inside = [self._is_inside(at) for at in self.all]
        self.backward = [any(map(self._is_backward, self._with(at))) for at in self.all]
        self.kind = {at: self._kind(at) if self.inside[at] else None for at in self.all}
        self.marks = [at for at in self.all if self.kind[at]]
        self.nearest = {at: self._mark_of(self._with(at), at) for at in self.all}
        self.above = {at: self._mark_of(self.around[at], at) for at in self.all}
        self.made_by = {at: self._maker(at) for at in self.marks if self.kind[at] == FUNCTION}
        self.scope = {at: self._scope(at, ()) for at in self.marks}
        self.up = self._links()

    def _around(self, at):
        chain = []
        while (at := self.parent[at]) >= 0:
            chain.append(at)
        return chain

    def _with(self, at):
        return [at, *self.around[at]]

    def _is_inside(self, at):
        if self.start[at] < self.edges[0] or self.end[at] > self.edges[-1]:
            return False
        return self._step(self.start[at]) not in self.left_out

    def _step(self, moment):
        return sum(edge <= moment for edge in self.edges) - 1

    def _is_backward(self, at):
        return self.name[at] == BACKWARD_RANGE or self.name[at].startswith(EVALUATE)

    def _kind(self, at):
        name, around = self.name[at], self.around[at]
        if name.startswith(MODULE_PREFIX):
            compiled = any(self.name[each].startswith("CompiledFunction") for each in around)
            return None if compiled else AGAIN if self.backward[at] else CALL
        if name == BACKWARD_RANGE:
            return None if any(map(self._is_backward, around)) else PASS
        if name == "CompiledFunction" or name.startswith("Torch-Compiled Region"):
            return None if any(map(self._kind_or_region, around)) else REGION
        function = FUNCTION if name.startswith(EVALUATE) else None
        return UPDATE if name.startswith("Optimizer.") else function

    def _kind_or_region(self, at):
        return "Compiled" in self.name[at] or self._kind(at) is not None

    def _mark_of(self, chain, at):
        """The innermost mark, but for ranges that were cut off before the event began."""
        marks = (each for each in chain if self.kind[each] and self.end[each] >= self.start[at])
        return next(marks, None)

    def _past(self, mark, *kinds):
        while mark is not None and self.kind[mark] in kinds:
            mark = self.above[mark]
        return mark

    def _may_make(self, at):
        name, parent = self.name[at], self.parent[at]
        if name == "[memory]" or name.startswith(vocabulary.RANGE_PREFIX):
            return False
        in_function = parent >= 0 and self.kind[parent] == FUNCTION
        own = in_function and self.sequence[parent] == self.sequence[at]
        return not (own or self.kind[at] == FUNCTION)

    def _maker(self, at):
        number = self.sequence[at]
        if number < 0:
            return None
        on_thread = [each for each in self.all if self.thread[each] == self.made_on[at]]
        makers = [n for n in on_thread if self.sequence[n] >= 0 and self._may_make(n)]
        same = [each for each in makers if self.sequence[each] == number]
        same = sorted(same, key=self.start.__getitem__)
        if same and self.start[same[-1]] < self.start[at]:
            return same[-1]
        # One operator made several functions, and has the number of the first.
        lower = [n for n in makers if self.sequence[n] <= number and not self.backward[n]]
        order = lambda each: (self.sequence[each], self.start[each], each)  # noqa: E731
        last = max(lower, key=order, default=None)
        return None if last is None or self.end[last] > self.start[at] else last

    def _scope(self, mark, seen):
        """A call's position as text, or a step part."""
        kind = self.kind[mark]
        if kind in CALLS:
            return str(mark)
        if kind == REGION:
            return vocabulary.COMPILED
        if kind == UPDATE:
            return vocabulary.ZERO_GRAD if "zero_grad" in self.name[mark] else vocabulary.OPTIMIZER
        if kind == PASS:
            outer = self._past(self.above[mark], PASS, UPDATE, FUNCTION)
            if outer is not None and self.kind[outer] in CALLS:
                return str(outer)
            begun = (self.start[each] for each in self.marks if self.kind[each] == FUNCTION)
            seen_any = any(self.start[mark] <= each <= self.end[mark] for each in begun)
            return OUTSIDE if seen_any else UNATTRIBUTED
        if self.name[mark] == EVALUATE + ACCUMULATE:
            return vocabulary.ACCUMULATION
        maker = self.made_by[mark]
        where = self._past(self.above[mark] if maker is None else self.nearest[maker], PASS)
        if mark in seen:
            return UNATTRIBUTED
        if where is not None and self.kind[where] in (*CALLS, REGION, FUNCTION):
            return self._scope(where, (*seen, mark))
        return UNATTRIBUTED if maker is None else OUTSIDE

    def _links(self):
        """The call around each call; of what is done again, that around the first time."""
        links, again = {}, []
        for call in (mark for mark in self.marks if self.kind[mark] in CALLS):
            outer = self._past(self.above[call], PASS, UPDATE)
            scope = None if outer is None else self.scope[outer]
            links[call] = int(scope) if isinstance(scope, str) else None
            if outer is not None and self.kind[outer] == FUNCTION:
                again.append(call)
        for call in again:
            first = links[call]
            while first is not None and self.name[first] != self.name[call]:
                first = links[first]
            if first is not None:
                links[call] = links[first]
        return links

    def owner(self, scope):
        """The module of a call; a step part as it is."""
        is_part = isinstance(scope, int)
        return scope if is_part else int(self.name[int(scope)].removeprefix(MODULE_PREFIX))

    def holders(self, scope):
        """Modules that hold a call, each once; or the step part."""
        if isinstance(scope, int):
            return {scope}
        found, call = set(), int(scope)
        while True:
            found.add(self.owner(str(call)))
            if (call := self.up[call]) is None:
                return found

    def _spans(self):
        """How long each mark lasts; backward functions until the next one begins."""
        span = {}
        for mark in self.marks:
            above, until = self.above[mark], self.end[mark]
            beside = [each for each in self.marks if self.above[each] == above and each > mark]
            if self.kind[mark] == FUNCTION and above is not None:
                if beside:
                    follows = self.kind[beside[0]] == FUNCTION
                    if follows and self.parent[beside[0]] == self.parent[mark]:
                        until = self.start[beside[0]]
                elif self.parent[mark] == above and self.kind[above] == PASS:
                    until = max(until, self.end[above])
            span[mark] = until - self.start[mark]
        return span

    def own_times(self):
        """The time of each mark alone; that of other threads' functions is of the passes' time."""
        span = self._spans()
        own = dict(span)
        for mark in self.marks:
            if self.above[mark] is not None:
                own[self.above[mark]] -= span[mark]
        others = [each for each in self.marks if self.thread[each] != self.main]
        elsewhere = [each for each in others if self.above[each] is None]
        functions = [each for each in elsewhere if self.kind[each] == FUNCTION]
        given = dict.fromkeys(elsewhere, 0)
        waits = [each for each in self.marks if self.kind[each] == PASS]
        for wait in (each for each in waits if self.thread[each] == self.main):
            begin, end = self.start[wait], self.end[wait]
            helping = [each for each in functions if begin <= self.start[each] < end]
            if helping:
                direct = [each for each in self.marks if self.above[each] == wait]
                order = sorted(helping + direct, key=self.start.__getitem__)
                until = [*(self.start[each] for each in order[1:]), end]
                given |= {at: to - self.start[at] for at, to in zip(order, until, strict=True)}
                own[wait] += sum(span[each] for each in direct)
                own[wait] -= sum(given[each] for each in order)
        tops = {at: next((up for up in self._with(at) if up in given), -1) for at in self.marks}
        for top, time in given.items():
            inner = [each for each in self.marks if each != top and tops[each] == top]
            held = sum(own[each] for each in inner)
            own[top] = time - min(held, time)
            for each in inner:
                own[each] *= min(held, time) / held if held else 1
        return own

    def rows(self, parts, losses):
        """Rows by module or step part, with the figures of `ModuleSums`; times in nanoseconds.

        `parts` are the times that no mark covers, `losses` the moments of losses.
        """
        rows = defaultdict(lambda: defaultdict(float))
        for mark in self.marks:
            maker = mark if self.kind[mark] == PASS else self.made_by.get(mark)
            begun = -1 if maker is None else self.start[maker]
            if self.scope[mark] == OUTSIDE and any(at <= begun <= end for at, end in losses):
                self.scope[mark] = vocabulary.LOSS
        for mark, time in self.own_times().items():
            kind, scope = self.kind[mark], self.scope[mark]
            way = "backward" if kind in (AGAIN, FUNCTION, PASS) else "forward"
            rows[self.owner(scope)][f"{way}_self"] += time
            for holder in self.holders(scope):
                rows[holder][way] += time
                if kind == AGAIN:
                    rows[holder]["recomputed"] += time
            outer = self._past(self.above[mark], CALL, AGAIN, FUNCTION, PASS)
            first = kind == UPDATE and (outer is None or self.scope[outer] != scope)
            rows[self.owner(scope)]["calls"] += first or kind in (CALL, REGION)
        for part, time in parts.items():
            rows[part]["forward_self"] += time
            rows[part]["forward"] = rows[part]["forward_self"]
        for at in [at for at in self.all if self.inside[at] and self.name[at] == "[memory]"]:
            call = self._past(self.nearest[at], FUNCTION, PASS, UPDATE, AGAIN)
            if call is not None and self.kind[call] == CALL:
                column = "host_net_bytes" if self.device[at] < 0 else "device_net_bytes"
                for holder in self.holders(str(call)):
                    rows[holder][column] += self.nbytes[at]
        return rows
