"""What stands where in a cluster's row of numbers, and in its row of parameters.

A row is one array of 8-byte numbers. Kernels see it twice: as integers `k` (or `p`, for parameters) and as reals `r`
(or `q`). `+` after a name marks a real. Records are reached by slot: requests, instances and blocks are slots of pools,
linked by slot numbers; `NONE` ends a list. Times are integer nanoseconds; `NEVER` is later than all of them.
"""

from __future__ import annotations

from typing import Final

NONE: Final = -1
NEVER: Final = 1 << 62
ALONE: Final = -1  # the line of a request that shares no block
FIRST_DRAW: Final = 1 << 32  # `sim.server._FIRST`: the hash's numbers of a device's first state

# Why `advance` came back.
ASKED, ENDED, REQUESTS_FULL, INSTANCES_FULL, RECORDS_FULL, NO_CURVE, NO_TUPLE = range(1, 8)

# An instance's state.
LOADING, FREE, BUSY, UNLOADING = range(4)

# A request's fate.
COMPLETED, IN_FLIGHT, FAILED = range(3)

# Why a request was tried again or given up (`REASONS` are their names in records).
NO_REASON, DEADLINE, TOO_LARGE, SERVER_LOST, UNLABELLED, MEMORY = range(6)

# Whether labels are drawn from a table, or replayed from a matrix.
DRAWN, REPLAYED = range(2)

# What a fault does.
TAKE_OUT, COME_UP, STRAGGLE, SQUEEZE, CRASH, HANG, NOTICE_HANG = range(7)

# ------------------------------------------------------------------------------------------------------ the cluster
# fmt: off
(
    C_STATUS, C_IS_SET_OFF, C_NOW, C_ENDED, C_HORIZON, C_LIMIT, C_DRAINS, C_DETAIL, C_KEEPS, C_FAULTY,
    C_ARRIVALS, C_ARRIVAL_COUNT, C_ARRIVED, C_ARRIVAL_NS, C_DEADLINE,
    C_DECISION, C_ASKED, C_DECISION_END, C_HOST_FREE, C_AT_CAP, C_SNAPSHOT, C_TAG, C_DRAWS_SALT, C_DROPPED,
    C_SLOT, C_LINE, C_IS_ALONE, C_CANDIDATES, C_REMOVALS, C_REMOVALS_SEEN, C_SERVER, C_WIDTH, C_GROUP,
    C_FIFO_HEAD, C_FIFO_TAIL, C_FIFO_LENGTH, C_COMPLETED, C_FAILED, C_IN_FLIGHT,
    C_FREE_REQUEST, C_FREE_REQUESTS, C_FREE_INSTANCE, C_FREE_INSTANCES, C_FREE_SERVERS, C_GONE,
    C_POWER_NS, C_POWER_MEAN, C_ENERGY, C_VARIANCE, C_VARIANCE_STALE,          # reported power + mean_w, + energy_j
    C_JITTER_SALT, C_LINKS_SALT, C_POISON,                                      # an address, 0 for none
    C_LABEL_KIND, C_LABELS_SALT, C_LABEL_TABLE, C_LABELS, C_LABEL_COLUMNS, C_IMAGES,
    C_FAULTS, C_FAULT_NUMBER, C_RESTARTS, C_RESTARTS_AT, C_SCRATCH,
    C_CREDITS, C_REQUEST_RECORDS, C_REQUESTS_AT, C_BLOCK_RECORDS, C_BLOCKS_AT, C_BLOCKS_ROOM,
    C_BATCH_RECORDS, C_BATCHES_AT, C_BATCHES_ROOM, C_READINGS, C_READINGS_AT, C_READINGS_ROOM,
    C_VARIANCES, C_VARIANCES_AT, C_VARIANCES_ROOM,
    C_SIZE,
) = range(80)

# ------------------------------------------------------------------------------------------------------- the servers
# What happens at a server, in the order in which it happens at one instant (`sim.agenda.Kind`).
TRANSFER, START, END, LOAD, UNLOAD, TIMER, TELEMETRY, FAULT, PACE, KINDS = range(10)

(
    S_INDEX, S_PARAMETERS, S_DEVICE,
    S_TIMES,                                                                   # KINDS - 1 more
) = range(4)
(
    S_NEXT, S_EPOCH, S_UP, S_HUNG,
    S_QUEUED, S_SEQUENCE, S_RUNNING, S_KEYS, S_USED, S_FREEING, S_PEAK, S_UTILIZATION,           # + utilization
    S_IDLE_HEAD, S_IDLE_TAIL, S_NEXT_INSTANCE, S_NEXT_BATCH, S_BACKED_OFF,
    S_STARTS_HEAD, S_STARTS_TAIL, S_LOADS_HEAD, S_UNLOADS_HEAD, S_FAILING_HEAD, S_FACTOR, S_ROOM,  # + factor
    S_REQUESTS, S_BLOCKS, S_SEEN_UTILIZATION, S_SEEN_POWER, S_SEEN_VRAM,       # the router's: + utilization, + power
    S_REPORT_FIRST, S_REPORTS, S_READ, S_SAMPLE_NS,
    S_IMAGES, S_BATCHES, S_LOADS, S_UNLOADS,
    S_DOWN_SINCE, S_OUT_UNTIL, S_READY_AT, S_DEATHS, S_UP_SINCE,
    S_ORDER,
) = range(S_TIMES + KINDS, S_TIMES + KINDS + 43)
S_POWER: Final = S_SEEN_POWER  # the ledger's reported power and utilization are the router's: both forget at a death

# A work key's queue at a server (segment, width, previous width), and what the router has sent there of it.
K_HEAD, K_TAIL, K_COUNT, K_BLOCKED_SINCE, K_LOADS, K_OUTSTANDING, K_SINCE, K_SIZE = range(8)

# The instances of one segment and width at a server.
Q_HEAD, Q_FREE, Q_LOADING, Q_ALIVE, Q_HOSTED, Q_FAILURES, Q_RETRY_NS, Q_SIZE = range(8)

# A report on its way, and a sensor's reading.
T_RECEIVED, T_SAMPLED, T_EPOCH, T_UTILIZATION, T_POWER, T_VRAM, T_SIZE = range(7)
G_NS, G_ENERGY, G_BUSY, G_SIZE = range(4)                                      # + energy_mj, + busy_ms

# ------------------------------------------------------------------------------------------------ devices and media
(
    V_PARAMETERS, V_TOUCHED, V_UPDATED, V_POWER, V_BUSY, V_ENERGY, V_BUSY_NS,  # + power_mw, + energy_mw_ns
    V_PACE, V_IS_EXTRAPOLATED, V_EXTRAPOLATED_NS, V_FIRST, V_LAST, V_COUNT,    # + pace
    V_PACE_SALT, V_PACE_NUMBER, V_PACE_SLOW, V_CHANGES_AT, V_CHANGES, V_CHANGE,
    V_SIZE,
) = range(20)
Y_FREE_AT, Y_TRANSFERS, Y_SIZE = range(3)

# ---------------------------------------------------------------------------------------------------------- the pools
(
    R_ID, R_NEXT, R_FIFO_NEXT, R_FIFO_PREVIOUS, R_LINE, R_ENTERED, R_ENTERED_J,                  # + entered_j
    R_SEGMENT, R_PREVIOUS, R_CODE, R_LOCATION, R_EPOCH, R_RETRIES, R_BLOCK, R_POSITION, R_SEQUENCE,
    R_ARRIVED, R_ARRIVED_J, R_DEADLINE,                                        # + arrived_j
    R_SIZE,
) = range(20)

# What a request's record needs beyond that, where records are kept: S servers and S widths follow, then stages.
L_LENGTH, L_SINCE, L_LOST, L_STAGES, L_SERVERS = range(5)
STAGE_COUNT: Final = 7  # `policies.records.STAGES` but `lost`

(
    I_ID, I_SPEC, I_STATE, I_USED_NS, I_NEXT, I_IDLE_NEXT, I_IDLE_PREVIOUS, I_LINK, I_NS, I_SERVER,
    I_BATCH, I_HEAD, I_FAILED, I_COUNT, I_KEY, I_SERVED, I_PADDED, I_COMMANDED, I_STARTED, I_LOAD_BEGAN, I_LOADED,
    I_RUN_NEXT, I_RUN_PREVIOUS, I_WORK, I_SLOW, I_END, I_FACTOR, I_FROZEN, I_ROW,  # + work, + slow, + factor
    I_SIZE,
) = range(30)

# A block on its way or at its server; its moves and its members follow.
(
    B_DECISION, B_SERVER, B_EPOCH, B_KEY, B_COUNT, B_ENDED, B_MOVES, B_MOVING, B_LINE, B_TAG,
    B_SNAPSHOT, B_SENT, B_ARRIVED,
    B_SIZE,
) = range(14)
O_NS, O_SOURCE, O_MOVING, O_SIZE = range(4)
M_REQUEST, M_ENDED, M_FAILED, M_SOURCE, M_SPAN, M_ENERGY, M_ACCURACY, M_SIZE = range(8)          # + energy, + accuracy

L_HEAD, L_TAIL, L_COUNT, L_SIZE = range(4)                                     # a line of the router's FIFO
F_NS, F_SERVER, F_ORDER, F_NUMBER, F_WHAT, F_ARGUMENT, F_SIZE = range(7)       # + argument of STRAGGLE

# -------------------------------------------------------------------------------------------------------- the records
D_DECISION, D_ACCURACY, D_LATENCY, D_ENERGY, D_IMBALANCE, D_BONUS, D_TOTAL, D_TAG, D_SIZE = range(9)  # a credit
(
    A_ID, A_ARRIVED, A_FINISHED, A_FATE, A_REASON, A_RETRIES, A_CORRECT, A_ENERGY, A_LENGTH, A_STAGES,  # + energy
) = range(10)                                                                  # then S widths, S servers
E_DECISION, E_LINE, E_SERVER, E_KEY, E_COUNT, E_SNAPSHOT, E_SENT, E_ARRIVED, E_ENDED, E_LATENCY, E_CREDIT, E_SIZE = (
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15
)                                                                              # + latency_s, + five terms
(
    H_SERVER, H_BATCH, H_INSTANCE, H_SEGMENT, H_WIDTH, H_PREVIOUS, H_COUNT, H_COMMANDED, H_STARTED, H_ENDED,
    H_SIZE,
) = range(11)
N_SERVER, N_SAMPLED, N_UTILIZATION, N_POWER, N_VRAM, N_QUEUED, N_SIZE = range(7)
W_SERVER, W_DOWN, W_UP, W_SIZE = range(4)                                      # a restart

# ------------------------------------------------------------------------------------------------------ the parameters
(
    P_SERVERS, P_DEVICES, P_SEGMENTS, P_WIDTHS, P_KEYS, P_SPECS, P_LINES, P_CAP, P_GROUP, P_MOVES, P_LEAVES, P_MEDIA,
    P_DECISION_NS, P_BUSY_NS, P_ANYWHERE, P_RETRIES, P_SHEDS,
    P_ALPHA, P_BETA, P_GAMMA, P_DELTA, P_BONUS, P_CENTRE, P_MEAN_TOP1,                              # + all
    P_PRIOR, P_PRIOR_LEVELS,
    P_HANG_NS, P_BACKOFF_NS, P_BACKOFF_LIMIT_NS, P_STABLE_NS, P_START_NS,
    # where things stand in the cluster's row
    P_TREE, P_VALID, P_SERVER_AT, P_SERVER_SIZE, P_KEYS_AT, P_SPECS_AT, P_REPORTS_AT, P_REPORTS, P_SENSOR_AT, P_SENSOR,
    P_DEVICE_AT, P_MEDIA_AT, P_BLOCK_AT, P_BLOCK_SIZE, P_MEMBERS_AT, P_LINES_AT, P_FAULTS_AT, P_FAULTS,
    P_CREDITS_AT, P_CANDIDATES_AT, P_SCRATCH_AT, P_INSTANCES_AT, P_INSTANCES, P_REQUESTS_AT, P_REQUESTS, P_REQUEST_SIZE,
    P_MARGIN,
    # where things stand in the row of parameters
    P_SERVER_PARAMETERS, P_DEVICE_PARAMETERS, P_LOGS, P_LOGS_COUNT,
    P_SIZE,
) = range(63)
LOGS_TABULATED: Final = 1 << 15

(
    X_DEVICE, X_BATCH_LIMIT, X_CAP, X_UTILIZATION_BLOCK, X_IDLE_NS, X_TRIGGER, X_SCALE_CAP, X_BLOCKS, X_SKIP_NS,
    X_AS_INSTANCE, X_PADDED, X_PADDED_COUNT, X_PRELOAD, X_PRELOAD_COUNT, X_LOAD_RETRIES, X_LOAD_BACKOFF_NS, X_CONTEXT,
    X_MEDIUM, X_LATENCY, X_BANDWIDTH, X_LOSS,                                                  # + three
    X_INSTANCE_BYTES, X_CAN_HOLD, X_HOLDS, X_HOLDS_ANY, X_CODES, X_POWER_LIMIT,                # + power_limit_w
    X_SIZE,
) = range(28)

(
    Z_TABLE, Z_LIMIT, Z_CROWDING, Z_CROWDING_ACROSS, Z_HOSTED, Z_MOST, Z_MOST_PROCESSES,       # + two
    Z_ALPHA, Z_IDLE_MW, Z_CAP_MW, Z_THROTTLE, Z_PHI_MIN,                                       # + five
    Z_PERIOD, Z_LAG, Z_POWER_WINDOW, Z_UTILIZATION_WINDOW, Z_DISPATCH, Z_COSTS, Z_BYTES,
    Z_SERVERS, Z_SERVER_COUNT, Z_MEAN_PACE, Z_PACE, Z_SLOW_FACTOR, Z_FULL, Z_FULL_COUNT, Z_FULL_SUM,
    Z_SLOW, Z_SLOW_COUNT, Z_SLOW_SUM,                                                          # + mean, + slow_factor
    Z_SIZE,
) = range(31)

# One batch size of one work key on a device, and what an instance costs.
(
    U_LATENCY, U_TYPICAL, U_DEMAND, U_HOST, U_BUSY, U_BANDWIDTH, U_POWER, U_JITTER, U_JITTERS, U_SIZE,  # + two
) = range(10)
J_LOAD, J_RELOAD, J_UNLOAD, J_SIZE = range(4)
# fmt: on
