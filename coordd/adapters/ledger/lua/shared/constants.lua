-- Words, columns, figures and the table of moves. Written by `make lua` from the rules in Python: change those.

-- States and answers (core/ledger/words.py).
local PENDING = 'pending'
local RECEIVED = 'received'
local STARTED = 'started'
local SUCCESS = 'success'
local FAILURE = 'failure'
local RETRY = 'retry'
local REVOKED = 'revoked'
local REJECTED = 'rejected'
local MISSED = 'missed'
local LOST = 'lost'
local UNKNOWN = 'unknown'
local BAD = 'bad'
local CANCEL = 'cancel'
local CONFLICT = 'conflict'
local DIFFERS = 'differs'
local EARLY = 'early'
local EXISTS = 'exists'
local FINISHED = 'finished'
local GRANTED = 'granted'
local HELD = 'held'
local LIMITED = 'limited'
local OK = 'ok'
local OUTDATED = 'outdated'
local RECOVERING = 'recovering'
local STALE = 'stale'
local UNRECORDED = 'unrecorded'
local SETTLED = 'settled'
local STATES = {
  failure = true, lost = true, missed = true, pending = true, received = true, rejected = true, retry = true,
  revoked = true, started = true, success = true, unknown = true,
}
local TERMINAL = { failure = true, lost = true, missed = true, rejected = true, revoked = true, success = true }
local ACTIVE = { received = true, retry = true, started = true, unknown = true }
local HOLDING = { received = true, started = true, unknown = true }

-- Who may follow whom (core/ledger/steps.py).
local MOVES = {
  pending = { failure = true, missed = true, received = true, rejected = true, revoked = true },
  retry = { missed = true, received = true, revoked = true },
  received = {
  failure = true, lost = true, missed = true, received = true, retry = true, revoked = true, started = true,
},
  started = { failure = true, lost = true, retry = true, revoked = true, success = true, unknown = true },
  unknown = { failure = true, lost = true, retry = true, revoked = true, started = true, success = true },
}

-- What a report may say, and as what an attempt so reported may stand in the record (core/ledger/rules.py).
local REPORTED = {
  success = { success = true },
  failure = { failure = true },
  revoked = { revoked = true },
  lost = { lost = true, revoked = true },
  retry = { lost = true, revoked = true },
}

-- Words of a policy, in their order: the valid ones, or the largest number (core/ledger/words.py).
local POLICY = {
  { name = 'on_lost', words = { hold = true, relaunch = true } },
  { name = 'overlap', words = { allow = true, forbid = true, queue = true, replace = true } },
  { name = 'attempts', most = 1000000 },
  { name = 'relaunches', most = 1000000 },
  { name = 'delay_s', most = 315360000 },
  { name = 'backoff', words = { exponential = true, fixed = true, linear = true } },
  { name = 'start_within_s', most = 315360000 },
  { name = 'limits' },
}
-- Limits (core/ledger/limits); one table, because Lua knows at most 200 names at a time.
local LIMIT = {
  POOL = 'pool/', RETRY_S = 1, DROPPED_MAX = 100, QUEUE_MAX = 100, JITTER_MAX = 1000,
  KINDS = { ['slots:'] = true, ['rate:'] = true, ['queue='] = true, ['jitter='] = true, ['breaker='] = true },
}
-- Fire times without a row, missed runs (core/ledger/fires.py); one table for the same reason.
local FIRES = {
  STRETCHES_MAX = 100, SUSPENDED = 'suspended', REDEFINED = 'changed',
  HELD_BY_SUSPENSION = '; its job is suspended', HELD_BY_OTHERS = '; it waited for ',
}
-- Backfill (core/ledger/backfill); one table for the same reason.
local BACKFILL = {
  KEY = 'backfill:', BY = 'backfill ', RUNNING = 'running', DONE = 'done', STOPPED = 'stopped',
  CANCELLED = 'cancelled', OLDEST = 'oldest', EVERY = 'all', FAILED = 'failed', NOTHING = '-', KEPT_S = 2592000,
  RETRY_S = 1, UNSETTLED_S = 5,
}
-- The breakers of jobs (core/ledger/breaker); one table for the same reason.
local BREAKER = {
  ITEM = 'breaker=', CLOSED = 'closed', OPEN = 'open', HALF_OPEN = 'half_open', TIMEOUT = 'timeout',
  MATCHED = 'matched', TIMED_OUT = 'timeout after ', HAS_MATCHED = '; a pattern of its breaker matches',
  BY = 'breaker', NOBODY = '-', GROUPS_MAX = 8, COUNT_MAX = 100, DOUBLINGS_MAX = 30, RETRY_S = 1,
  STATES = { closed = true, half_open = true, open = true },
  TRYING = { received = true, retry = true, started = true },
  GROWTH = { exponential = true, fixed = true, linear = true }, WHEN_OPEN = { fail = true, prevent = true },
}
-- The keys of holds, or how they begin (core/ledger/rows.py). ABSENT, OPENED: how ``by`` of a run begins
-- whose parents did not all come, or did; RERUN_OF: what follows there in a re-run; REPEATED: how it begins
-- in a re-run of a run without parents (core/ledger/words.py).
-- CHILDREN_KEPT_S: how long it is waited for (seconds). One table for the same reason.
local OF = {
  NODE = 'node:', JOB = 'job:', POOL = 'pool:', REVISION = 'revision', BREAKER = 'breaker:',
  ISOLATED = 'isolated:', ABSENT = 'its parents were awaited; absent: ', OPENED = 'after ', CHECK = 'check:',
  REPORTED = 'reported:', RERUN = 'rerun:', RERUN_OF = '; rerun of ', REPEATED = 'rerun of ', GONE = 'gone',
  CHILDREN_KEPT_S = 604800,
}
-- Marks (core/ledger/marks), how many changes are kept (core/ledger/feed); one table for the same reason.
local MARKS = { NEWCOMER_S = 10, FORGOTTEN_S = 86400, IMPORTED = 'imported', FEED_MAX = 10000 }

-- Figures.
local SCHEMA = '1'  -- a closed ledger has another one
local NEW_RULES = 2  -- the version of the rules that identity_from begins
local NEVER = 32503680000  -- Unix seconds: identity_from while the old rules are in force
local RHO = 0.01  -- clock-rate error between two machines
local CLOCK_EXACT_S = 0.001  -- seconds
local CLAIM_AHEAD_S = 5  -- seconds
local GATE_AHEAD_S = 0.25  -- seconds
local OPEN_PAGE = 1000  -- rows on one page of a sweep
local BEGUN_MAX = 10  -- runs in an answer
local SUSPENDED_RETRY_S = 5  -- seconds
local OVERLAP_RETRY_S = 1  -- seconds
local NAMED_MAX = 10  -- runs in a sentence
local POLICY_WORDS_MIN = 7  -- words of a policy that every row has
local BACKOFF_MAX_S = 21600  -- seconds
local BACKOFF_DOUBLINGS_MAX = 20  -- doublings of a delay
local ACTIVATIONS_MAX = 50  -- definitions of a job that are remembered
local IDENTITY_AHEAD_S = 10  -- seconds
local LATE_S = 10  -- seconds
local BARRIER_AT = 32000000000  -- Unix seconds: the horizon that older versions read
local BARRIER_BY = 'coordd rules 2: upgrade this node'  -- who suspended the job, as they read it
local SHORT_LIVED_S = 10  -- seconds
local ALL = 'all'  -- the key of the hold on every job
local RELAUNCH_PAUSE_S = 1  -- seconds
local RELAUNCH_DOUBLINGS_MAX = 6  -- doublings of that pause
local INSTANT_MAX = 32503680000  -- Unix seconds: the year 3000
local TOKEN_MAX = 9007199254740992  -- the highest whole number that a column may have
local FENCE_MAX = 9006099743113216  -- a job's fence: tokens to come need room above it
local BAD_MAX = 100  -- bad rows that one step passes over, or names

-- Bytes of a text; core/ledger/sound.py counts characters, of four bytes at most.
local TEXT_BYTES_MAX = 4096
local LONG_BYTES_MAX = { args = 262144, reason = 262144 }

-- Columns (core/ledger/rows.py); of a run's row, OPEN is what a sweep tells, FEED what has a number when it
-- changes; WHOLE and INSTANT are numbers.
local COLUMNS = {
  RUN = {
  'run', 'job', 'digest', 'args', 'policy', 'scheduled', 'fire_at', 'created_at', 'by', 'state', 'attempt',
  'not_before', 'failures', 'relaunches', 'token', 'nonce', 'node', 'lease', 'until', 'boot', 'beat',
  'commit_token', 'cancel', 'received_at', 'started_at', 'ended_at', 'exit_code', 'application_id', 'reason',
  'due',
},
  ATTEMPT = {
  'run', 'attempt', 'token', 'nonce', 'node', 'state', 'received_at', 'started_at', 'ended_at', 'exit_code',
  'application_id', 'reason',
},
  JOB = { 'job', 'fence', 'horizon', 'suspended', 'version', 'changed_by' },
  STANDING = {
  'job', 'horizon', 'suspended', 'version', 'changed_by', 'sequence', 'digest', 'schedule', 'activated_at',
  'counts_from',
},
  OPEN = {
  'run', 'job', 'digest', 'args', 'scheduled', 'fire_at', 'state', 'attempt', 'token', 'nonce', 'node', 'lease',
  'beat', 'not_before', 'until', 'boot', 'policy', 'due', 'ended_at', 'by',
},
  FEED = {
  'state', 'job', 'digest', 'args', 'policy', 'scheduled', 'fire_at', 'due', 'by', 'attempt', 'not_before',
  'token', 'nonce', 'node',
},
  WHOLE = { 'scheduled', 'attempt', 'failures', 'relaunches', 'token', 'beat', 'commit_token', 'cancel' },
  INSTANT = { 'fire_at', 'created_at', 'not_before', 'received_at', 'started_at', 'ended_at', 'due' },
}
-- Those that are numbers.
local NUMBERS = {
  activated_at = true, attempt = true, beat = true, cancel = true, commit_token = true, counts_from = true,
  created_at = true, due = true, ended_at = true, failures = true, fence = true, fire_at = true, horizon = true,
  lease = true, not_before = true, received_at = true, relaunches = true, scheduled = true, sequence = true,
  started_at = true, suspended = true, token = true, ['until'] = true, version = true,
}
