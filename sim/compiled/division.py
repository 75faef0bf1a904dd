"""`sim.divided` and `policies.division`, compiled: to whom an image goes, what routers tell each other, how they die.

Who owns what after each death is known before the run (`RunRow`). What routers' hosts do comes in the order in which
it was planned: each has a *turn*.
"""

from __future__ import annotations

from math import ceil, inf

from kit.jit import Ints, Reals, ints, ints_at, kernel, reals_at
from sim.compiled.chance import hashed_share
from sim.compiled.codes import NEVER, NONE
from sim.compiled.faults import BEGINS, CRASH, plan_fault
from sim.compiled.layout import Cluster, Death, Division, Journey, Message, Parameters, Request, Stages, Word
from sim.compiled.ledger import collect_in_flight, note_loss, sort_slots
from sim.compiled.observation import count_requests
from sim.compiled.router import admit, arrive, free_slot, plan_transfers, rounds, stop_moving
from sim.compiled.rows import block_at, key_at, message_at, request_at, server_at
from sim.compiled.seats import known_of, sit_down

_NS = 1_000_000_000
_DECISION, _DECISION_TURN, _HEAR = (Cluster.offsets[name] for name in ("decision_end_ns", "decision_turn", "hear_ns"))
_HEARD, _UP, _WAITING = (Cluster.offsets[name] for name in ("first_heard", "servers_up", "fifo_length"))
_ADMITTED, _REQUEST, _JOURNEY, _STAGES = Request.offsets["admitted"], Request.size, Journey.size, Stages.size
_WORD = Word.size
DIE, WORDS, HEAR_WORDS, ARRIVE, DECISION, HEAR = range(6)  # what a turn is


@kernel
def division(c: Cluster) -> Division:
    """How the cluster is divided; of several routers only."""
    return Division(c.division_at)


# ------------------------------------------------------------------------------------------------------ to whom it goes


@kernel
def _is_alive(c: Cluster, router: int) -> bool:
    return ints_at(division(c).alive_at)[router] != 0


@kernel
def router_of(c: Cluster, p: Parameters, request: int) -> int:
    """To whom a request is dealt now (`Territory.router_of`)."""
    d, attempt = division(c), 0
    while True:
        share, router = hashed_share(d.dealt_salt, request, attempt), 0
        while router < p.routers - 1 and reals_at(d.edges_at)[router] <= share:
            router += 1
        if _is_alive(c, router):
            return router
        attempt += 1


@kernel
def burden(c: Cluster, p: Parameters, router: int) -> float:
    """`RouterCore.burden`."""
    if known_of(c, p, router, _UP) == 0:
        return inf
    return float(known_of(c, p, router, _WAITING))


@kernel
def _receiver(c: Cluster, p: Parameters, router: int) -> int:
    """Who takes an image that arrives at a router; NONE: it stays (`Neighbours.receiver`)."""
    d = division(c)
    waiting = burden(c, p, router)
    if d.handover_at == NONE or waiting < d.handover_at:
        return NONE
    shares, known, first = reals_at(d.shares_at), reals_at(d.waiting_at), router * p.routers
    best, least = NONE, inf
    for other in range(p.routers):
        if other != router and _is_alive(c, other):
            its = known[first + other] / shares[other]
            if best == NONE or its < least:
                best, least = other, its
    if best == NONE or least >= waiting / shares[router]:
        return NONE
    known[first + best] += 1
    return best


@kernel
def deal(c: Cluster, p: Parameters, now: int) -> None:
    """The next image comes to the router that it is dealt to; a full one hands it on, once (`_admit`)."""
    slot = arrive(c, p, now)
    if p.routers == 1:
        admit(c, p, slot, now)
        return
    router = router_of(c, p, request_at(c, p, slot).id)
    receiver = _receiver(c, p, router)
    if receiver == NONE:
        sit_down(c, p, router)
        admit(c, p, slot, now)
    else:
        _carry(c, p, slot, receiver, now)


@kernel
def _carry(c: Cluster, p: Parameters, slot: int, receiver: int, now: int) -> None:
    """On its way to a router."""
    d, request = division(c), request_at(c, p, slot)
    latencies = 1
    if d.loss > 0:
        chance = hashed_share(d.handover_salt, request.id, receiver)
        latencies += 2 * (rounds(d.image_bytes, d.loss, chance) - 1)
    carried_s = d.image_bytes / (1 - d.loss) / d.bandwidth_bytes_s + latencies * d.latency_s
    c.turns += 1
    request.router, request.carried_ns, request.turn = receiver, now + ceil(carried_s * _NS), c.turns
    request.block, request.location, request.fifo_next = NONE, NONE, d.first_carried
    d.first_carried = slot
    d.carried_ns = min(d.carried_ns, request.carried_ns)


@kernel
def _next_carried(c: Cluster, p: Parameters, now: int) -> int:
    """Of those who are there now the one who left first."""
    best, slot = NONE, division(c).first_carried
    while slot != NONE:
        request = request_at(c, p, slot)
        if request.carried_ns == now and (best == NONE or request.turn < request_at(c, p, best).turn):
            best = slot
        slot = request.fifo_next
    return best


@kernel
def _arrive_there(c: Cluster, p: Parameters, now: int) -> None:
    """Whoever has died meanwhile is passed over (`_arrive`)."""
    d, slot = division(c), _next_carried(c, p, now)
    before, at = NONE, d.first_carried
    while at != slot:
        before, at = at, request_at(c, p, at).fifo_next
    request = request_at(c, p, slot)
    if before == NONE:
        d.first_carried = request.fifo_next
    else:
        request_at(c, p, before).fifo_next = request.fifo_next
    d.carried_ns, at = NEVER, d.first_carried
    while at != NONE:
        d.carried_ns, at = min(d.carried_ns, request_at(c, p, at).carried_ns), request_at(c, p, at).fifo_next
    router = request.router
    if not _is_alive(c, router):
        router = router_of(c, p, request.id)
    if c.keeps:
        _begin_anew(c, p, request, now)
    sit_down(c, p, router)
    admit(c, p, slot, now)


@kernel
def _begin_anew(c: Cluster, p: Parameters, request: Request, now: int) -> None:
    """All that it has passed is lost, where the router that had it is dead (`Ledger._note_arrival`)."""
    journey = Journey(request, _REQUEST)
    if journey.stages == 0:
        return
    note_loss(c, p, request, now)
    for n in range(journey.stages * _STAGES):
        journey.lost_ns += ints(journey)[_JOURNEY + 2 * p.segments + n]
    journey.length = journey.stages = 0


# -------------------------------------------------------------------------------------------- what they tell each other


@kernel
def _word(c: Cluster, p: Parameters, number: int) -> Word:
    d = division(c)
    return Word(d.words_at + 8 * (number % d.words_room) * (_WORD + p.routers))


@kernel
def _told(c: Cluster, p: Parameters, number: int) -> Reals:
    d = division(c)
    return reals_at(d.words_at + 8 * ((number % d.words_room) * (_WORD + p.routers) + _WORD))


@kernel
def _tell(c: Cluster, p: Parameters, now: int) -> None:
    """Each tells the others how many wait (`_words`)."""
    d = division(c)
    word = _word(c, p, d.first_word + d.words)
    d.words += 1
    c.turns += 1
    word.due_ns, word.turn, word.tick = now + ceil(d.latency_s * _NS), c.turns, d.tick
    told = _told(c, p, d.first_word + d.words - 1)
    for router in range(p.routers):
        told[router] = burden(c, p, router) if _is_alive(c, router) else -1.0
    d.tick += 1
    c.turns += 1
    d.words_ns, d.words_turn = now + d.told_every_ns, c.turns


@kernel
def _hear_words(c: Cluster, p: Parameters) -> None:
    """`_hear_words`."""
    d = division(c)
    word, known = _word(c, p, d.first_word), reals_at(d.waiting_at)
    told = _told(c, p, d.first_word)
    for router in range(p.routers):
        for other in range(p.routers):
            number = (word.tick * p.routers + router) * p.routers + other
            if told[router] >= 0 and other != router and hashed_share(d.words_salt, number, 0) >= d.loss:
                known[other * p.routers + router] = told[router]
    d.first_word += 1
    d.words -= 1


# ------------------------------------------------------------------------------------------------------------ they die


@kernel
def plan_death(c: Cluster) -> None:
    """When the next router is killed."""
    d = division(c)
    d.death_ns = Death(d.deaths_at, 0, d.death).at_ns


@kernel
def _die(c: Cluster, p: Parameters, now: int) -> None:
    """A router's servers' processes end with it. Its clients see it go, and send again (`_die`)."""
    d = division(c)
    router = Death(d.deaths_at, 0, d.death).router
    d.death += 1
    plan_death(c)
    sit_down(c, p, router)
    slots = ints_at(c.scratch_at)
    count = _its_requests(c, p, router, slots)
    for n in range(count):
        request = request_at(c, p, slots[n])
        if request.block != NONE:
            note_loss(c, p, request, now)
    ints_at(d.alive_at)[router] = 0
    for index in range(p.servers):
        server = server_at(c, p, index)
        if server.owner != router:
            continue
        _leave_server(c, p, index)
        server.owner = ints_at(d.owners_at)[d.death * p.servers + index]
        server.is_lost = server.is_up
        plan_fault(c, p, server, now, BEGINS, CRASH, 0, 0.0)
    c.slot, c.fifo_head, c.decision_end_ns, c.in_flight = NONE, NONE, NEVER, 0
    for n in range(count):
        _carry(c, p, slots[n], router_of(c, p, request_at(c, p, slots[n]).id), now)


@kernel
def _its_requests(c: Cluster, p: Parameters, router: int, slots: Ints) -> int:
    """What a router has in flight, in the order in which it got it."""
    everyone, count = collect_in_flight(c, p, slots), 0
    for n in range(everyone):
        request = request_at(c, p, slots[n])
        if request.router == router and request.carried_ns == NEVER:
            slots[count] = slots[n]
            count += 1
    sort_slots(c, p, slots, count, _ADMITTED)
    return count


@kernel
def _leave_server(c: Cluster, p: Parameters, index: int) -> None:
    """Nobody knows any more what was sent there."""
    server = server_at(c, p, index)
    while server.first_block != NONE:
        number = server.first_block
        if block_at(c, p, number).moving > 0:
            stop_moving(c, p, server, number)
        free_slot(c, p, server, number)
    for key in range(p.keys):
        key_at(p, server, key).outstanding = 0
    count_requests(c, p, server, -server.requests)
    server.blocks = 0
    plan_transfers(c, p, server)


# ----------------------------------------------------------------------------------------------------- whose turn it is


@kernel
def hosts_due_ns(c: Cluster, p: Parameters) -> int:
    """When something is next done by a router's host, or between two of them."""
    d = division(c)
    due = min(min(d.death_ns, d.words_ns), d.carried_ns)
    if d.words > 0:
        due = min(due, _word(c, p, d.first_word).due_ns)
    for place in range(p.routers):
        due = min(due, min(known_of(c, p, place, _DECISION), known_of(c, p, place, _HEAR)))
    return due


@kernel
def take_turn(c: Cluster, p: Parameters, now: int) -> int:
    """What was planned first of what is due now: does what is between routers; of a host's it gives it the seat.

    Returns which of these it is.
    """
    d = division(c)
    if d.death_ns == now:  # as planned before the run
        _die(c, p, now)
        return DIE
    what, first = NONE, NEVER
    if d.words_ns == now:
        what, first = WORDS, d.words_turn
    if d.words > 0 and _word(c, p, d.first_word).due_ns == now and _word(c, p, d.first_word).turn < first:
        what, first = HEAR_WORDS, _word(c, p, d.first_word).turn
    if d.carried_ns == now and request_at(c, p, _next_carried(c, p, now)).turn < first:
        what, first = ARRIVE, request_at(c, p, _next_carried(c, p, now)).turn
    whose = c.place
    for place in range(p.routers):
        if known_of(c, p, place, _DECISION) == now and known_of(c, p, place, _DECISION_TURN) < first:
            what, whose, first = DECISION, place, known_of(c, p, place, _DECISION_TURN)
        if known_of(c, p, place, _HEAR) == now and _heard(c, p, place).turn < first:
            what, whose, first = HEAR, place, _heard(c, p, place).turn
    if what == WORDS:
        _tell(c, p, now)
    elif what == HEAR_WORDS:
        _hear_words(c, p)
    elif what == ARRIVE:
        _arrive_there(c, p, now)
    else:
        sit_down(c, p, whose)
    return what


@kernel
def _heard(c: Cluster, p: Parameters, place: int) -> Message:
    return message_at(c, p, known_of(c, p, place, _HEARD))
