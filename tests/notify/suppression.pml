/* Suppressed notifications: PUBLISHERS x MESSAGES messages, WORKERS with CAP slots each.
 *
 * The lease K of db/init/common/notify.sql: a worker that suppresses notifications holds it
 * exclusively. A publisher tries to share K after its row is written, when its transaction has an
 * id: refused, it skips NOTIFY; granted, it notifies after the commit. A worker that ends the
 * suppression releases K, waits for every transaction that has an id then, and polls a last time
 * before it sleeps. A worker without a free slot cannot know what is left, also when this poll took
 * the last slot: it wakes the others. A woken worker polls, waits as if it had released K itself,
 * and polls again; without a free slot it does so when it has one, and wakes no other worker.
 *
 * A handler may run without end (stuck). No worker polls regularly, but with CRASH: what was
 * published while a worker crashed costs one poll.
 *
 * Checked in all states: no message waits permanently while a worker has a free slot; a process is
 * blocked only by sleep or stuck handlers; no worker sleeps with K; every message is claimed once.
 *
 * Variants: STOP, one worker is stopped; CRASH, one worker and its session crash.
 * Mutants, each must break a guarantee: NEVER_NOTIFY, KEY_BEFORE_ROW, SNAPSHOT_BEFORE_RELEASE,
 * SNAPSHOT_OF_ENDED, NO_WAIT, POLL_BEFORE_WAIT, NO_LAST_POLL, NO_WAIT_AFTER_TIMEOUT,
 * CLEAR_BEFORE_SLEEP, SLEEP_SUPPRESSING, NO_WAKE_WHILE_FULL, NO_WAKE_AT_HAND_OVER,
 * NO_WAKE_AFTER_POLL, NO_WAKE_AT_STOP and NO_WAIT_AFTER_WAKE (with STOP), NO_POLL (with CRASH).
 */
#ifndef PUBLISHERS
#define PUBLISHERS 2
#endif
#ifndef MESSAGES
#define MESSAGES 2
#endif
#ifndef FEWER
#define FEWER 0                     /* how many messages fewer the last publisher has */
#endif
#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef CAP
#define CAP 1
#endif
#define ALL ((1 << WORKERS) - 1)
#define ME (1 << me)

byte waiting;                       /* messages that are committed and not claimed */
byte open;                          /* publishers whose transaction has an id: a bit for each */
byte shares, queued, holder;        /* K: shares, waiting workers, holder (number + 1) */
byte notifications;                 /* workers with a notification: a bit for each */
byte woken;                         /* those woken by all: publishers may have skipped NOTIFY */
byte awaited[WORKERS];              /* open publishers of the snapshot that a worker took */
byte running[WORKERS];              /* slots that are taken, */
byte stuck[WORKERS];                /* and those that are never free again */
byte committed, claimed;
byte gone;                          /* workers that stopped or crashed: a bit for each */
#ifdef CRASH
byte skipping;                      /* publishers that will not notify: a bit for each */
byte excused;                       /* those that were open when a worker crashed */
byte polls;                         /* workers that poll once more for them: a bit for each */
#endif
#ifdef SNAPSHOT_OF_ENDED
byte next = 1, last;                /* the next transaction id, the last that has ended */
byte number[PUBLISHERS];
#endif

inline write_row() {
  d_step {
    open = open | (1 << me);
#ifdef SNAPSHOT_OF_ENDED
    number[me] = next;
    next++
#endif
  }
}

/* A worker that waits for K exclusively is an obstacle too. */
inline try_share() {
  d_step {
    notifies = (holder == 0 && queued == 0);
    shares = shares + notifies;
#ifdef CRASH
    if
    :: notifies -> skipping = skipping & ~(1 << me)
    :: else -> skipping = skipping | (1 << me)
    fi
#endif
  }
}

/* One step for every poll: the rows are visible, and the transaction is in no new snapshot. */
inline commit() {
  d_step {
    waiting++;
    committed++;
    open = open & ~(1 << me);
    i = 0;
    do
    :: i < WORKERS -> awaited[i] = awaited[i] & ~(1 << me); i++
    :: else -> break
    od;
    i = 0;
#ifdef CRASH
    if
    :: excused & (1 << me) -> excused = excused & ~(1 << me); polls = ALL
    :: else -> skip
    fi;
    skipping = skipping & ~(1 << me);
#endif
#ifdef SNAPSHOT_OF_ENDED
    if
    :: number[me] > last -> last = number[me]
    :: else -> skip
    fi
#endif
  }
}

proctype Publisher(byte me) {
  bool notifies;
  byte i, published;
  do
  :: published < MESSAGES - (me == PUBLISHERS - 1 -> FEWER : 0) ->
#ifdef KEY_BEFORE_ROW
     try_share();
     write_row();
#else
     write_row();
     try_share();
#endif
     commit();
     if
     :: atomic { notifies -> shares-- }
#ifndef NEVER_NOTIFY
        notifications = ALL         /* delivered after the commit and after the locks */
#endif
     :: else -> skip
     fi;
     published++
  :: else -> break
  od
}

#define free (running[me] < CAP)
#define full (running[me] == CAP)
#define suppresses (holder == me + 1)

inline claim() {
  d_step { waiting--; running[me]++; claimed++ };
  if
  :: stuck[me]++                    /* this handler never ends */
  :: skip
  fi
}

inline finish() { running[me]-- }

inline release() {
  d_step { if :: suppresses -> holder = 0 :: else -> skip fi }
}

inline take_snapshot() {
  d_step {
#ifdef SNAPSHOT_OF_ENDED
    /* Like pg_current_snapshot(): without transactions that began after the last that ended. */
    awaited[me] = 0;
    i = 0;
    do
    :: i < PUBLISHERS ->
       if
       :: (open & (1 << i)) && number[i] < last -> awaited[me] = awaited[me] | (1 << i)
       :: else -> skip
       fi;
       i++
    :: else -> break
    od;
    i = 0
#else
    awaited[me] = open
#endif
  }
}

inline wake_all() { d_step { notifications = ALL; woken = ALL } }

inline wake_if_waiting() {
  d_step { if :: waiting > 0 -> notifications = ALL; woken = ALL :: else -> skip fi }
}

#ifdef CRASH
/* At most one crashes, at any moment, with K, its position in the queue for K, and its messages,
 * which the reaper takes.
 */
#define MAY_CRASH :: atomic { gone == 0 -> crash() }; goto over
inline crash() {
  d_step {
    gone = ME;
    excused = skipping & open;
    if :: waiting > 0 -> polls = ALL :: else -> skip fi;
    release();
    running[me] = 0;
    stuck[me] = 0
  }
}
#define MAY_CRASH_QUEUED :: atomic { gone == 0 -> queued--; crash() }; goto over
#else
#define MAY_CRASH
#define MAY_CRASH_QUEUED
#endif

#ifdef STOP
#define MAY_STOP :: atomic { gone == 0 -> gone = ME }; goto stop
#else
#define MAY_STOP
#endif

proctype Worker(byte me) {
  byte i;
  bool owes;                        /* publishers may have skipped NOTIFY because of this worker */
poll:
#ifndef CLEAR_BEFORE_SLEEP
  notifications = notifications & ~ME; /* before the poll: one during it causes another poll */
#endif
  if
  :: atomic { !suppresses && holder == 0 && queued == 0 && shares == 0 ->
       holder = me + 1; owes = true }
  :: atomic { !suppresses && holder == 0 && queued == 0 && shares > 0 -> queued++ };
     if
     :: atomic { holder == 0 && shares == 0 -> holder = me + 1; queued--; owes = true }
     :: atomic { queued--;          /* not in time */
#ifndef NO_WAIT_AFTER_TIMEOUT
        owes = true; goto begin_wait
#endif
        }
     MAY_CRASH_QUEUED
     fi
  :: skip                           /* another worker suppresses, or there is no load */
  fi;
drain:
  do
  :: atomic { waiting > 0 && free -> claim() }
  :: atomic { running[me] > stuck[me] -> finish() }
  :: atomic { full -> goto saturated }
  :: atomic { waiting == 0 && free -> break }
  MAY_STOP
  MAY_CRASH
  od;
  if
  :: atomic { suppresses -> goto unsuppress }
  :: atomic { !suppresses && (woken & ME) == 0 -> owes = false; goto sleep }
  :: atomic { !suppresses && (woken & ME) -> woken = woken & ~ME };
#ifdef NO_WAIT_AFTER_WAKE
     goto sleep
#else
     goto begin_wait
#endif
  fi;
unsuppress:
#ifdef SLEEP_SUPPRESSING
  goto sleep;
#endif
#ifdef SNAPSHOT_BEFORE_RELEASE
  take_snapshot();
  release();
  goto wait;
#endif
  release();
begin_wait:
  take_snapshot();
wait:
#ifdef POLL_BEFORE_WAIT
  if
  :: atomic { waiting > 0 && free -> goto poll }
  :: atomic { waiting == 0 || full -> skip }
  fi;
#endif
  do
#ifdef NO_WAIT
  :: break
#else
  :: atomic { awaited[me] == 0 -> break }
#endif
  :: atomic { waiting > 0 && free -> claim() }
  :: atomic { running[me] > stuck[me] -> finish() }
  MAY_STOP
  MAY_CRASH
  od;
  if
#if defined(NO_LAST_POLL) || defined(POLL_BEFORE_WAIT)
  :: atomic { free -> owes = false; goto sleep }
#else
  :: atomic { free -> goto poll }
#endif
  :: atomic { full -> skip }
  fi;
#ifndef NO_WAKE_AT_HAND_OVER
  if
  :: owes -> wake_if_waiting()
  :: !owes -> skip                  /* the others were woken too */
  fi;
#endif
  atomic { owes = false; goto sleep };
saturated:
  if
  :: atomic { !suppresses && !owes -> goto sleep }
  :: atomic { !suppresses && owes -> owes = false };         /* the last poll took all slots */
#ifndef NO_WAKE_AFTER_POLL
     wake_if_waiting();
#endif
     goto sleep
  :: atomic { suppresses -> goto unsuppress }                  /* hand over */
  :: atomic { suppresses -> skip }                           /* or keep K, maybe permanently */
  fi;
end_full:
  if
  :: atomic { running[me] > stuck[me] -> finish() }; goto drain
#ifndef NO_WAKE_WHILE_FULL
  :: atomic { waiting > 0 && (notifications & woken) != ALL -> wake_all() }; goto end_full
#endif
  MAY_STOP
  MAY_CRASH
  fi;
sleep:
#ifdef CLEAR_BEFORE_SLEEP
  notifications = notifications & ~ME;
#endif
  assert(!suppresses);
end_asleep:
  if
  :: atomic { notifications & ME -> goto poll }
  :: atomic { running[me] > stuck[me] -> finish() }; goto poll
#if defined(CRASH) && !defined(NO_POLL)
  :: atomic { polls & ME -> polls = polls & ~ME }; goto poll
#endif
  MAY_STOP
  MAY_CRASH
  fi;
stop:                               /* it claims no more and does not wait: woken workers do */
  release();
#ifndef NO_WAKE_AT_STOP
  wake_all();
#endif
over:
  skip
}

#define helpless(w) (stuck[w] == CAP || (gone & (1 << w)))

init {
  byte i;
  atomic {
    do
    :: i < WORKERS -> run Worker(i); i++
    :: else -> break
    od;
    i = 0;
    do
    :: i < PUBLISHERS -> run Publisher(i); i++
    :: else -> break
    od
  };
  (timeout);
  assert(committed == PUBLISHERS * MESSAGES - FEWER && claimed + waiting == committed);
  assert(waiting == 0 || (helpless(0) && helpless(1)))
}
