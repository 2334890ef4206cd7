/* The bell of an attended queue: PUBLISHERS x MESSAGES messages, WORKERS with CAP slots each.
 *
 * The key K of db/init/common/notify.sql: a worker that attends holds it exclusively. A publisher tries
 * to share it after its row is written, that is, after its transaction has a number: refused, it
 * stays silent; granted, it rings after the commit. A worker that stops attending releases K, waits
 * for every transaction that has a number then, and looks a last time before it sleeps. A worker
 * whose slots are all taken, be it by this look, cannot tell what is left: it summons the others.
 * Whoever hears a summons looks, waits as if it had released K itself, and looks again; if it has no
 * free slot it does so when it has, and summons nobody.
 *
 * A handler may run for ever (stuck). Nobody polls, but with CRASH: what was published while a
 * worker died costs one poll.
 *
 * Checked in all states: no message waits for ever while a worker has a free slot; nobody is
 * blocked but by sleep or stuck handlers; nobody sleeps holding K; every message is claimed once.
 *
 * Variants: STOP, one worker is told to end; CRASH, one worker dies, and its session with it.
 * Mutants, each must break a promise: SILENT_ALWAYS, KEY_BEFORE_ROW, SNAPSHOT_BEFORE_RELEASE,
 * SNAPSHOT_OF_ENDED, NO_SETTLING, LOOK_BEFORE_SETTLING, NO_LAST_LOOK, NO_SETTLING_AFTER_TIMEOUT,
 * CLEAR_BEFORE_SLEEP, SLEEP_ATTENDING, NO_SUMMON_WHILE_FULL, NO_SUMMON_AT_HAND_OVER,
 * NO_SUMMON_AFTER_LOOK, NO_SUMMON_AT_STOP and NO_SETTLING_AFTER_SUMMONS (with STOP), NO_POLL (with
 * CRASH).
 */
#ifndef PUBLISHERS
#define PUBLISHERS 2
#endif
#ifndef MESSAGES
#define MESSAGES 2
#endif
#ifndef FEWER
#define FEWER 0                     /* messages that the last publisher has less than the others */
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
byte unended;                       /* publishers whose transaction has a number: a bit for each */
byte shares, queued, holder;        /* K: shares, who waits for it, who has it (number + 1) */
byte bells;                         /* workers whose alarm is set: a bit for each */
byte summoned;                      /* those that heard a summons: publishers may have been silent */
byte unsettled[WORKERS];            /* of the snapshot that a worker took, who has not ended */
byte running[WORKERS];              /* slots that are taken, */
byte stuck[WORKERS];                /* and those of them that will never be free again */
byte committed, claimed;
byte gone;                          /* workers that stopped or died: a bit for each */
#ifdef CRASH
byte silent;                        /* publishers that will not ring: a bit for each */
byte excused;                       /* those of them that were under way when a worker died */
byte polls;                         /* workers that poll once more for them: a bit for each */
#endif
#ifdef SNAPSHOT_OF_ENDED
byte next = 1, last;                /* the next transaction number, the last that has ended */
byte number[PUBLISHERS];
#endif

inline write_row() {
  d_step {
    unended = unended | (1 << me);
#ifdef SNAPSHOT_OF_ENDED
    number[me] = next;
    next++
#endif
  }
}

/* Who waits for K exclusively stands in the way as well. */
inline try_share() {
  d_step {
    rings = (holder == 0 && queued == 0);
    shares = shares + rings;
#ifdef CRASH
    if
    :: rings -> silent = silent & ~(1 << me)
    :: else -> silent = silent | (1 << me)
    fi
#endif
  }
}

/* One step for all who look: the rows are there, and the transaction is in no new snapshot. */
inline commit() {
  d_step {
    waiting++;
    committed++;
    unended = unended & ~(1 << me);
    i = 0;
    do
    :: i < WORKERS -> unsettled[i] = unsettled[i] & ~(1 << me); i++
    :: else -> break
    od;
    i = 0;
#ifdef CRASH
    if
    :: excused & (1 << me) -> excused = excused & ~(1 << me); polls = ALL
    :: else -> skip
    fi;
    silent = silent & ~(1 << me);
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
  bool rings;
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
     :: atomic { rings -> shares-- }
#ifndef SILENT_ALWAYS
        bells = ALL                 /* delivered after the commit and after the locks */
#endif
     :: else -> skip
     fi;
     published++
  :: else -> break
  od
}

#define free (running[me] < CAP)
#define full (running[me] == CAP)
#define attends (holder == me + 1)

inline claim() {
  d_step { waiting--; running[me]++; claimed++ };
  if
  :: stuck[me]++                    /* this handler never ends */
  :: skip
  fi
}

inline finish() { running[me]-- }

inline release() {
  d_step { if :: attends -> holder = 0 :: else -> skip fi }
}

inline take_snapshot() {
  d_step {
#ifdef SNAPSHOT_OF_ENDED
    /* As pg_current_snapshot(): what began after the last that has ended is not in it. */
    unsettled[me] = 0;
    i = 0;
    do
    :: i < PUBLISHERS ->
       if
       :: (unended & (1 << i)) && number[i] < last -> unsettled[me] = unsettled[me] | (1 << i)
       :: else -> skip
       fi;
       i++
    :: else -> break
    od;
    i = 0
#else
    unsettled[me] = unended
#endif
  }
}

inline ring_all() { d_step { bells = ALL; summoned = ALL } }

inline summon() {
  d_step { if :: waiting > 0 -> bells = ALL; summoned = ALL :: else -> skip fi }
}

#ifdef CRASH
/* At most one dies, at any moment, with K, its place in the queue for K, and its messages: those
 * are the reaper's.
 */
#define MAY_DIE :: atomic { gone == 0 -> die() }; goto over
inline die() {
  d_step {
    gone = ME;
    excused = silent & unended;
    if :: waiting > 0 -> polls = ALL :: else -> skip fi;
    release();
    running[me] = 0;
    stuck[me] = 0
  }
}
#define MAY_DIE_QUEUED :: atomic { gone == 0 -> queued--; die() }; goto over
#else
#define MAY_DIE
#define MAY_DIE_QUEUED
#endif

#ifdef STOP
#define MAY_STOP :: atomic { gone == 0 -> gone = ME }; goto stop
#else
#define MAY_STOP
#endif

proctype Worker(byte me) {
  byte i;
  bool owes;                        /* others may have been silent because of this worker */
look:
#ifndef CLEAR_BEFORE_SLEEP
  bells = bells & ~ME;              /* before the look: what rings during it calls for another */
#endif
  if
  :: atomic { !attends && holder == 0 && queued == 0 && shares == 0 -> holder = me + 1; owes = true }
  :: atomic { !attends && holder == 0 && queued == 0 && shares > 0 -> queued++ };
     if
     :: atomic { holder == 0 && shares == 0 -> holder = me + 1; queued--; owes = true }
     :: atomic { queued--;          /* not in time */
#ifndef NO_SETTLING_AFTER_TIMEOUT
        owes = true; goto settle
#endif
        }
     MAY_DIE_QUEUED
     fi
  :: skip                           /* somebody attends, or it is not worth it */
  fi;
drain:
  do
  :: atomic { waiting > 0 && free -> claim() }
  :: atomic { running[me] > stuck[me] -> finish() }
  :: atomic { full -> goto saturated }
  :: atomic { waiting == 0 && free -> break }
  MAY_STOP
  MAY_DIE
  od;
  if
  :: atomic { attends -> goto unattend }
  :: atomic { !attends && (summoned & ME) == 0 -> owes = false; goto sleep }
  :: atomic { !attends && (summoned & ME) -> summoned = summoned & ~ME };
#ifdef NO_SETTLING_AFTER_SUMMONS
     goto sleep
#else
     goto settle
#endif
  fi;
unattend:
#ifdef SLEEP_ATTENDING
  goto sleep;
#endif
#ifdef SNAPSHOT_BEFORE_RELEASE
  take_snapshot();
  release();
  goto settling;
#endif
  release();
settle:
  take_snapshot();
settling:
#ifdef LOOK_BEFORE_SETTLING
  if
  :: atomic { waiting > 0 && free -> goto look }
  :: atomic { waiting == 0 || full -> skip }
  fi;
#endif
  do
#ifdef NO_SETTLING
  :: break
#else
  :: atomic { unsettled[me] == 0 -> break }
#endif
  :: atomic { waiting > 0 && free -> claim() }
  :: atomic { running[me] > stuck[me] -> finish() }
  MAY_STOP
  MAY_DIE
  od;
  if
#if defined(NO_LAST_LOOK) || defined(LOOK_BEFORE_SETTLING)
  :: atomic { free -> owes = false; goto sleep }
#else
  :: atomic { free -> goto look }
#endif
  :: atomic { full -> skip }
  fi;
#ifndef NO_SUMMON_AT_HAND_OVER
  if
  :: owes -> summon()
  :: !owes -> skip                  /* the summons that it heard, others have heard as well */
  fi;
#endif
  atomic { owes = false; goto sleep };
saturated:
  if
  :: atomic { !attends && !owes -> goto sleep }
  :: atomic { !attends && owes -> owes = false };         /* the last look took all slots */
#ifndef NO_SUMMON_AFTER_LOOK
     summon();
#endif
     goto sleep
  :: atomic { attends -> goto unattend }                  /* hand over */
  :: atomic { attends -> skip }                           /* or keep K, maybe for ever */
  fi;
end_attending:
  if
  :: atomic { running[me] > stuck[me] -> finish() }; goto drain
#ifndef NO_SUMMON_WHILE_FULL
  :: atomic { waiting > 0 && (bells & summoned) != ALL -> ring_all() }; goto end_attending
#endif
  MAY_STOP
  MAY_DIE
  fi;
sleep:
#ifdef CLEAR_BEFORE_SLEEP
  bells = bells & ~ME;
#endif
  assert(!attends);
end_asleep:
  if
  :: atomic { bells & ME -> goto look }
  :: atomic { running[me] > stuck[me] -> finish() }; goto look
#if defined(CRASH) && !defined(NO_POLL)
  :: atomic { polls & ME -> polls = polls & ~ME }; goto look
#endif
  MAY_STOP
  MAY_DIE
  fi;
stop:                               /* it claims no more, and waits for nobody: those who hear it do */
  release();
#ifndef NO_SUMMON_AT_STOP
  ring_all();
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
