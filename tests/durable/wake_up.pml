/* The wake-up of parked messages: MESSAGES messages that wait WAITS times each, for WAITS signals.
 *
 * As in db/init/durable/signals.sql: a wait looks for a signal and parks its message, a signal looks
 * for waits and wakes them, and each looks once more when its transaction commits. Neither sees what
 * another transaction has not committed, so all four looks may come too early. Maintenance looks
 * last, at each signal and each parking after its commit.
 *
 * The row of a message is locked from a wait or a wake-up to the end of the transaction. A worker, a
 * sender or maintenance may be killed at any moment: its transaction is undone, and it begins again;
 * the lock of a message expires. A parked message may be woken for another reason, as by run_now.
 *
 * Signals are for all, and wait n is for signal n. TO_ONE: they are for message 0 and have one name,
 * so that each wait receives the first one that is left, and takes it away.
 *
 * Checked in all states: no signal is missed, so in the end no message is parked; each wait receives
 * a signal once; a signal to one message is received by one wait; only kills use attempts.
 *
 * Mutants, each must break a guarantee: NO_ROW, NO_RECORD, NO_CHECK_OF_SIGNALS, NO_CHECK_OF_WAITS,
 * CHECK_FORGOTTEN, NOT_NEW_AGAIN, PARK_BEFORE_WAIT, ATTEMPT_COUNTED, NO_DELETE (with TO_ONE).
 */
#ifndef MESSAGES
#define MESSAGES 1
#endif
#ifndef WAITS
#define WAITS 1
#endif
#ifndef KILLS
#define KILLS 1                     /* how many processes are killed */
#endif
#ifndef WAKES
#define WAKES 1                     /* how often messages are woken for another reason */
#endif
#define BIT(n) (1 << (n))
#define NOBODY 255                  /* owners of the lock of a row; a worker is its message */
#define MAINTENANCE 254
#define SENDER 100

mtype = { waiting, locked, parked, done };
mtype state[MESSAGES] = waiting;
byte row[MESSAGES] = NOBODY;        /* who has locked the row */
byte at[MESSAGES];                  /* its next wait: those before are recorded */
byte waits, new_waits;              /* messages whose wait has a row, and is new: a bit for each */
byte sent, new_signals, taken;      /* signals that are there, are new, are deleted: a bit for each */
byte received[WAITS];               /* how many waits have received a signal */
byte receipts[MESSAGES * WAITS];    /* how many signals each wait has received */
byte attempts[MESSAGES], killed[MESSAGES];
byte kills, wakes, ended;

#ifdef TO_ONE
#define there(wait) (sent & ~taken)
#define wants(m, signal) true
#else
#define there(wait) (sent & BIT(wait))
#define wants(m, signal) (at[m] == signal)
#endif

#define MAY_BE_KILLED :: atomic { kills < KILLS -> kills++ }; goto undone

/* The first signal for a wait; `found` is NOBODY if there is none. */
inline look(wait) {
  d_step {
    found = 0;
    do
    :: found < WAITS && (there(wait) & BIT(found)) == 0 -> found++
    :: else -> break
    od;
    if :: found == WAITS -> found = NOBODY :: else fi
  }
}

/* Lock the messages that are parked and wait for a signal; the end of the transaction wakes them. */
inline wake(signal, who) {
  d_step {
    seen = 0;
    do
    :: m < MESSAGES ->
       if
       :: state[m] == parked && (waits & BIT(m)) && wants(m, signal) -> seen = seen | BIT(m)
       :: else
       fi;
       m++
    :: else -> break
    od;
    m = 0
  };
  do
  :: m < MESSAGES ->
     if
     :: (seen & BIT(m)) == 0 || row[m] == who
     :: atomic { (seen & BIT(m)) && row[m] == NOBODY ->
          if :: state[m] == parked -> row[m] = who :: else fi }
     MAY_BE_KILLED
     fi;
     woken = woken | (row[m] == who -> BIT(m) : 0);
     m++
  :: else -> m = 0; break
  od
}

/* The end of a transaction; one that is undone wakes nobody. */
inline unlock(who, which) {
  m = 0;
  do
  :: m < MESSAGES ->
     if
     :: row[m] == who ->
        row[m] = NOBODY;
        if :: which & BIT(m) -> state[m] = waiting :: else fi
     :: else
     fi;
     m++
  :: else -> m = 0; break
  od;
  seen = 0;
  woken = 0
}

inline receive() {
  d_step {
    receipts[me * WAITS + wait]++;
    assert(receipts[me * WAITS + wait] == 1);
    received[found]++;
#ifdef TO_ONE
    assert(received[found] == 1);
#ifndef NO_DELETE
    taken = taken | BIT(found);
#endif
#endif
    waits = waits & ~BIT(me);
    new_waits = new_waits & ~BIT(me);
    wait++;
#ifndef NO_RECORD
    at[me] = wait;
#endif
    row[me] = NOBODY
  }
}

inline begin_wait() {
  d_step {
#ifdef NOT_NEW_AGAIN
    new_waits = new_waits | (BIT(me) & ~waits);
#else
    new_waits = new_waits | BIT(me);
#endif
    waits = waits | BIT(me)
  }
}

inline park() {
  d_step {
#ifndef PARK_BEFORE_WAIT
    begin_wait();
#endif
    state[me] = (found == NOBODY -> parked : waiting);
#ifndef ATTEMPT_COUNTED
    attempts[me]--;
#endif
    row[me] = NOBODY
  }
}

proctype Worker(byte me) {
  byte found, wait;
claim:
  found = 0;
  wait = 0;
end_claim:
  atomic { state[me] == waiting && row[me] == NOBODY ->
    state[me] = locked;
    attempts[me]++;
    assert(attempts[me] <= killed[me] + 1);
    wait = at[me]
  };
  do
  :: wait == WAITS -> break
  :: wait < WAITS ->
     if
     :: atomic { row[me] == NOBODY -> row[me] = me }
     MAY_BE_KILLED
     fi;
     look(wait);
     if
     :: found != NOBODY -> receive()
     :: found == NOBODY ->
        look(wait);                 /* before the commit */
        if
        :: park()
        MAY_BE_KILLED
        fi;
#ifdef PARK_BEFORE_WAIT
        if
        :: begin_wait()
        :: atomic { kills < KILLS -> kills++ }
        fi;
#endif
        goto claim
     MAY_BE_KILLED
     fi
  od;
  if
  :: state[me] = done; goto over
  MAY_BE_KILLED
  fi;
undone:                             /* the lock expires */
  skip;
  d_step {
    if :: row[me] == me -> row[me] = NOBODY :: else fi;
    killed[me]++;
    state[me] = waiting
  };
  goto claim;
over:
  skip
}

proctype Sender(byte me) {
  byte m, seen, woken;
begin:
  wake(me, SENDER + me);
  wake(me, SENDER + me);            /* before the commit */
  if
  :: d_step {
       unlock(SENDER + me, woken);
#ifndef NO_ROW
       sent = sent | BIT(me);
       new_signals = new_signals | BIT(me);
#endif
       ended++
     };
     goto over
  MAY_BE_KILLED
  fi;
undone:
  skip;
  d_step { unlock(SENDER + me, 0) };
  goto begin;
over:
  skip
}

#define checkable(m) ((new_waits & BIT(m)) && (row[m] == NOBODY || row[m] == MAINTENANCE))
#if MESSAGES == 1
#define any_checkable checkable(0)
#else
#define any_checkable (checkable(0) || checkable(1))
#endif

proctype Maintenance() {
  byte m, n, seen, woken, signals, checked, found;
begin:
  skip;
  d_step { n = 0; signals = 0; checked = 0; found = 0 };
end_idle:
  if
#ifndef NO_CHECK_OF_SIGNALS
  :: new_signals != 0 -> signals = new_signals
#endif
#ifndef NO_CHECK_OF_WAITS
  :: any_checkable -> signals = new_signals
#endif
  fi;
#ifdef NO_CHECK_OF_SIGNALS
  signals = 0;
#endif
#ifdef CHECK_FORGOTTEN
  new_signals = new_signals & ~signals;
#endif
  do
  :: n < WAITS && (signals & BIT(n)) -> wake(n, MAINTENANCE); n++
  :: n < WAITS && (signals & BIT(n)) == 0 -> n++
  :: n == WAITS -> n = 0; break
  od;
#ifndef NO_CHECK_OF_WAITS
  do
  :: n < MESSAGES ->
     d_step { if :: checkable(n) -> row[n] = MAINTENANCE; checked = checked | BIT(n) :: else fi };
     n++
  :: n == MESSAGES -> n = 0; break
  od;
  do
  :: n < MESSAGES ->
     if
     :: (checked & BIT(n)) && state[n] == parked ->
        look(at[n]);
        woken = woken | (found == NOBODY -> 0 : BIT(n))
     :: else
     fi;
     n++
  :: n == MESSAGES -> n = 0; break
  od;
#endif
  if
  :: d_step {
       new_signals = new_signals & ~signals;
       new_waits = new_waits & ~checked;
       unlock(MAINTENANCE, woken)
     };
     goto begin
  MAY_BE_KILLED
  fi;
undone:
  skip;
  d_step { unlock(MAINTENANCE, 0) };
  goto begin
}

proctype Waker(byte me) {
  do
  :: atomic { wakes < WAKES && state[me] == parked && row[me] == NOBODY ->
       wakes++; state[me] = waiting }
  :: break
  od
}

init {
  byte i;
  atomic {
    do
    :: i < MESSAGES -> run Worker(i); run Waker(i); i++
    :: else -> break
    od;
    i = 0;
    do
    :: i < WAITS -> run Sender(i); i++
    :: else -> break
    od;
    i = 0;
    run Maintenance()
  };
  (timeout);
  assert(ended == WAITS);
  do
  :: i < MESSAGES -> assert(state[i] == done); i++
  :: else -> break
  od
}
