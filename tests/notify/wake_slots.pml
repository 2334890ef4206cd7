/* Wake slots: a notification for one message wakes only workers with a wake slot of its queue.
 *
 * WORKERS workers that run CAP handlers each, SLOTS wake slots, MESSAGES messages, each with a
 * notification that names one id. A worker tries for a slot when it has found nothing, and then
 * polls a last time. A worker that can claim nothing more leaves its slot: it releases it, then
 * checks whether any slot is taken, and if none is, wakes all workers, whether or not a message
 * waits: one that found all slots taken does not answer single notifications, and must take one.
 *
 * A notification arrives after the commit, at one worker after the other. Each judges it by the slot
 * that it believes to hold, which it learns after the server. A handler may run without end (stuck).
 * No worker polls regularly, but with CRASH: a worker that crashes costs every other one poll.
 *
 * Checked in all states: no message waits permanently while a worker could claim it; no worker
 * sleeps while no slot is taken (with LOSS_ONLY that alone is no failure).
 *
 * Mutants, each must break a guarantee: WAKE_IF_WAITING, CHECK_BEFORE_RELEASE, EXCLUSIVE_CHECK,
 * CHECK_TO_THE_END, NO_WAKE, KEEP_SLOT, SLOT_AFTER_POLL, CLEAR_AFTER_SLOT, NO_POLL (with CRASH).
 */
#ifndef WORKERS
#define WORKERS 3
#endif
#ifndef SLOTS
#define SLOTS 1
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
byte slot[SLOTS];                 /* the worker that holds a slot (number + 1) */
byte checks[SLOTS];                /* workers that hold it for the moment of a check */
byte notifications;                 /* workers with a notification: a bit for each */
byte believes;                      /* workers that believe to hold a slot: a bit for each */
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
     do                             /* the notification reaches one worker after the other */
     :: i < WORKERS -> d_step { notifications = notifications | (believes & (1 << i)); i++ }
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

/* One slot after the other, as take_wake_slots() does. */
inline take_slot() {
  p = 0;
  do
  :: p < SLOTS && mine == 0 ->
     d_step {
       if
       :: slot[p] == 0 && checks[p] == 0 -> slot[p] = me + 1; mine = p + 1
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
    assert(slot[mine - 1] == me + 1);
    slot[mine - 1] = 0
  }
}

/* Checks slot by slot with a share, as two checks must not take each other for holders. The share
 * ends at once, before the notification: a worker that is woken must find the slot free.
 */
inline check() {
  p = 0;
  deserted = true;
  do
  :: p < SLOTS ->
     d_step {
       if
       :: slot[p] == me + 1 -> skip
#ifdef EXCLUSIVE_CHECK
       :: slot[p] == 0 && checks[p] == 0 -> checks[p]++; checked = checked | (1 << p)
#else
       :: slot[p] == 0 -> checks[p]++; checked = checked | (1 << p)
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
    :: i < SLOTS -> checks[i] = checks[i] - ((checked >> i) & 1); i++
    :: else -> break
    od;
    i = 0;
    checked = 0
  }
}

inline wake_all() {
#ifndef NO_WAKE
  if
#ifdef WAKE_IF_WAITING
  :: atomic { deserted && waiting > 0 -> notifications = ALL }
  :: atomic { !deserted || waiting == 0 -> skip }
#else
  :: atomic { deserted -> notifications = ALL }
  :: atomic { !deserted -> skip }
#endif
  fi
#else
  skip
#endif
}

inline leave_slot() {
#ifdef CHECK_BEFORE_RELEASE
  check();
  leave();
#else
  leave();
  check();
#endif
  wake_all();                         /* it may arrive before the transaction's locks end */
  end_check();
  d_step { mine = 0; believes = believes & ~ME }
}

#ifdef CRASH
#define MAY_CRASH :: atomic { gone == 0 -> crash() }; goto over
inline crash() {
  d_step {
    gone = ME;
    polls = ALL;
    if :: mine > 0 -> slot[mine - 1] = 0; mine = 0 :: else -> skip fi;
    running[me] = 0
  }
}
#else
#define MAY_CRASH
#endif

proctype Worker(byte me) {
  byte mine, p, i, checked;
  bool deserted;
poll:
#ifndef CLEAR_AFTER_SLOT
  notifications = notifications & ~ME;
#endif
again:
  do
  :: atomic { waiting > 0 && free -> claim() }
  :: atomic { running[me] > stuck[me] -> finish() }
  :: atomic { full -> goto saturated }
  :: atomic { waiting == 0 && free -> break }
  MAY_CRASH
  od;
  if
  :: atomic { mine > 0 -> goto sleep }
  :: atomic { mine == 0 -> skip }
  fi;
  take_slot();
#ifdef CLEAR_AFTER_SLOT
  notifications = notifications & ~ME;
#endif
#ifndef SLOT_AFTER_POLL
  if                                /* the last poll */
  :: atomic { waiting > 0 -> goto again }
  :: atomic { waiting == 0 -> skip }
  fi;
#endif
sleep:
  asleep = asleep | ME;
end_asleep:
  if
  :: atomic { notifications & ME -> asleep = asleep & ~ME; goto poll }
  :: atomic { running[me] > stuck[me] -> finish(); asleep = asleep & ~ME }; goto poll
#if defined(CRASH) && !defined(NO_POLL)
  :: atomic { polls & ME -> polls = polls & ~ME; asleep = asleep & ~ME }; goto poll
#endif
  MAY_CRASH
  fi;
saturated:
  if
  :: atomic { running[me] > stuck[me] -> finish() }; goto again
#ifdef KEEP_SLOT
  :: running[me] == stuck[me] -> skip
#else
  :: atomic { mine > 0 -> skip }; leave_slot()
#endif
  :: atomic { mine == 0 -> skip }
  MAY_CRASH
  fi;
end_saturated:
  if
  :: atomic { running[me] > stuck[me] -> finish() }; goto poll
  MAY_CRASH
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
#if SLOTS == 1
  assert(asleep == 0 || slot[0] > 0)
#else
  assert(asleep == 0 || slot[0] > 0 || slot[1] > 0)
#endif
#endif
}
