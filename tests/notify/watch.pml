/* Watch places: a bell that names one message wakes only workers that hold a place of its queue.
 *
 * WORKERS workers with CAP slots, PLACES places, MESSAGES messages, each with a bell of its own
 * that names one id. A worker tries for a place when it has found nothing, and then looks a last
 * time. A worker that has no free slot gives its place up: it releases it, then asks whether any
 * place is taken, and if none is, summons all workers, whether or not a message waits: one that
 * found all places taken sleeps deaf to single bells, and must get up to take one.
 *
 * A bell arrives after the commit, at one worker after the other, and is judged by what the worker
 * believes it holds, which it learns after the server knows. A handler may run for ever (stuck).
 * Nobody polls, but with CRASH: a worker that dies costs every other one poll.
 *
 * Checked in all states: no message waits for ever while a worker has a free slot; nobody sleeps
 * while no place is taken (with LOSS_ONLY that alone is no failure).
 *
 * Mutants, each must break a promise: SUMMON_IF_WAITING, CHECK_BEFORE_RELEASE, EXCLUSIVE_CHECK,
 * CHECK_TO_THE_END, NO_SUMMON, NO_UNWATCH, PLACE_AFTER_LOOK, CLEAR_AFTER_WATCH, NO_POLL (with CRASH).
 */
#ifndef WORKERS
#define WORKERS 3
#endif
#ifndef PLACES
#define PLACES 1
#endif
#ifndef MESSAGES
#define MESSAGES 3
#endif
#ifndef CAP
#define CAP 1
#endif
#define ALL ((1 << WORKERS) - 1)
#define ME (1 << me)

byte waiting;                       /* messages that are committed and not claimed */
byte place[PLACES];                 /* who holds a place (number + 1) */
byte checks[PLACES];                /* how many hold it for the moment of a check */
byte bells;                         /* workers whose alarm is set: a bit for each */
byte believes;                      /* workers that believe to hold a place: a bit for each */
byte running[WORKERS], stuck[WORKERS];
byte asleep, gone;
byte published;
#ifdef CRASH
byte polls;
#endif

#define free (running[me] < CAP)
#define full (running[me] == CAP)

proctype Publisher() {
  byte i;
  do
  :: published < MESSAGES ->
     d_step { waiting++; published++ };
     do                             /* the bell reaches one worker after the other */
     :: i < WORKERS -> d_step { bells = bells | (believes & (1 << i)); i++ }
     :: else -> i = 0; break
     od
  :: else -> break
  od
}

inline claim() {
  d_step { waiting--; running[me]++ };
  if
  :: stuck[me]++
  :: skip
  fi
}

inline finish() { running[me]-- }

/* One place after the other, as watch() does. */
inline watch() {
  p = 0;
  do
  :: p < PLACES && mine == 0 ->
     d_step {
       if
       :: place[p] == 0 && checks[p] == 0 -> place[p] = me + 1; mine = p + 1
       :: else -> skip
       fi;
       p++
     }
  :: else -> break
  od;
  if
  :: mine > 0 -> believes = believes | ME
  :: else -> skip
  fi
}

inline leave() {
  d_step {
    assert(place[mine - 1] == me + 1);
    place[mine - 1] = 0
  }
}

/* Asks place by place with a share, so that two who ask do not take each other for watchers; and
 * gives it back at once, that is, before the bell, so that nobody who hears it is turned away.
 */
inline check() {
  p = 0;
  deserted = true;
  do
  :: p < PLACES ->
     d_step {
       if
       :: place[p] == me + 1 -> skip
#ifdef EXCLUSIVE_CHECK
       :: place[p] == 0 && checks[p] == 0 -> checks[p]++; asked = asked | (1 << p)
#else
       :: place[p] == 0 -> checks[p]++; asked = asked | (1 << p)
#endif
       :: else -> deserted = false
       fi
     }
#if !defined(EXCLUSIVE_CHECK) && !defined(CHECK_TO_THE_END)
     end_check();
#endif
     p++
  :: else -> break
  od
}

inline end_check() {
  d_step {
    i = 0;
    do
    :: i < PLACES -> checks[i] = checks[i] - ((asked >> i) & 1); i++
    :: else -> break
    od;
    i = 0;
    asked = 0
  }
}

inline summon() {
#ifndef NO_SUMMON
  if
#ifdef SUMMON_IF_WAITING
  :: atomic { deserted && waiting > 0 -> bells = ALL }
  :: atomic { !deserted || waiting == 0 -> skip }
#else
  :: atomic { deserted -> bells = ALL }
  :: atomic { !deserted -> skip }
#endif
  fi
#else
  skip
#endif
}

inline unwatch() {
#ifdef CHECK_BEFORE_RELEASE
  check();
  leave();
#else
  leave();
  check();
#endif
  summon();                         /* others may hear it before the transaction's locks are gone */
  end_check();
  d_step { mine = 0; believes = believes & ~ME }
}

#ifdef CRASH
#define MAY_DIE :: atomic { gone == 0 -> die() }; goto over
inline die() {
  d_step {
    gone = ME;
    polls = ALL;
    if :: mine > 0 -> place[mine - 1] = 0; mine = 0 :: else -> skip fi;
    running[me] = 0
  }
}
#else
#define MAY_DIE
#endif

proctype Worker(byte me) {
  byte mine, p, i, asked;
  bool deserted;
look:
#ifndef CLEAR_AFTER_WATCH
  bells = bells & ~ME;
#endif
again:
  do
  :: atomic { waiting > 0 && free -> claim() }
  :: atomic { running[me] > stuck[me] -> finish() }
  :: atomic { full -> goto saturated }
  :: atomic { waiting == 0 && free -> break }
  MAY_DIE
  od;
  if
  :: atomic { mine > 0 -> goto sleep }
  :: atomic { mine == 0 -> skip }
  fi;
  watch();
#ifdef CLEAR_AFTER_WATCH
  bells = bells & ~ME;
#endif
#ifndef PLACE_AFTER_LOOK
  if                                /* the last look */
  :: atomic { waiting > 0 -> goto again }
  :: atomic { waiting == 0 -> skip }
  fi;
#endif
sleep:
  asleep = asleep | ME;
end_asleep:
  if
  :: atomic { bells & ME -> asleep = asleep & ~ME; goto look }
  :: atomic { running[me] > stuck[me] -> finish(); asleep = asleep & ~ME }; goto look
#if defined(CRASH) && !defined(NO_POLL)
  :: atomic { polls & ME -> polls = polls & ~ME; asleep = asleep & ~ME }; goto look
#endif
  MAY_DIE
  fi;
saturated:
  if
  :: atomic { running[me] > stuck[me] -> finish() }; goto again
#ifdef NO_UNWATCH
  :: running[me] == stuck[me] -> skip
#else
  :: atomic { mine > 0 -> skip }; unwatch()
#endif
  :: atomic { mine == 0 -> skip }
  MAY_DIE
  fi;
end_saturated:
  if
  :: atomic { running[me] > stuck[me] -> finish() }; goto look
  MAY_DIE
  fi;
over:
  asleep = asleep & ~ME
}

#define idle(w) ((asleep & (1 << w)) != 0)

init {
  byte i;
  atomic {
    do
    :: i < WORKERS -> run Worker(i); i++
    :: else -> break
    od;
    run Publisher()
  };
  (timeout);
  assert(published == MESSAGES);
  assert(asleep == 0 || waiting == 0);
#ifndef LOSS_ONLY
#if PLACES == 1
  assert(asleep == 0 || place[0] > 0)
#else
  assert(asleep == 0 || place[0] > 0 || place[1] > 0)
#endif
#endif
}
