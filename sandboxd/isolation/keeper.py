# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps templates and ready boxes as `pool` decides, and hands them out only while they are what a cold start would make.

A box is used only for the very mounts, limits, filter and user that it was made for, which is its key. That the paths are
still the same is seen in two ways:
- what was mounted or covered is identified by device and inode, as the template saw it when it mounted it; before each start
  the host's paths are looked at again. A directory that was moved away and replaced is another one.
- where somebody removes or replaces a file on which something is mounted, the kernel takes that mount away in every
  namespace (since Linux 3.18). It counts such changes, and /proc/PID/mounts tells: a template or box in which any
  mount has changed is not used again.
When the host's own mounts change, all are given up, since a copy of the tree does not follow.
Guards of absent paths are in no template; each box gets them with its command, from a plan made then.

Whatever goes wrong while something is made empties the pool: what is asked for next is made from the ground up.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Hashable
from functools import partial

from sandboxd.errors import IsolationError
from sandboxd.isolation import mountsteps, pool
from sandboxd.isolation.kept import Kept
from sandboxd.isolation.look import Look
from sandboxd.isolation.mountsteps import Steps
from sandboxd.isolation.nativebox import NativeBox
from sandboxd.isolation.pool import Caps, Demand
from sandboxd.isolation.shelf import Entry, Figures, identities, key_of
from sandboxd.isolation.zygotes import Identities, Template, watcher
from sandboxd.model import LaunchPlan

AWAKE = 1.0  # seconds for which the thread looks at things by itself after the last start or end
SOON = 0.002  # seconds in which the first process of a box has looked at what is left in it, or is given up
PAUSE = 1.0  # seconds without making anything after something could not be made
MakeTemplate = Callable[[LaunchPlan, Steps], Template]
MakeBox = Callable[[Template, LaunchPlan, Identities | None, bool], NativeBox]  # as native.make_box


class Keeper:
    """See the module. Thread-safe; its own thread does what no command should wait for."""

    def __init__(self, make_template: MakeTemplate, make_box: MakeBox, caps: Caps) -> None:
        self._make_template = make_template
        self._make_box = make_box
        self.caps = caps
        self._entries: dict[Hashable, Entry] = {}
        self._lock = threading.RLock()
        self._disposing = threading.RLock()  # taken before the other one
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread: threading.Thread | None = None
        self._over: list[NativeBox] = []  # have ended, and still take something
        self._refused = ""  # what was left in the last box that ran a command of a session, if it has gone for that
        self._closed = False
        self._sleeps = False
        self._last_event = 0.0
        self._pause_until = 0.0
        self._counts = {"warm": 0, "template": 0, "cold": 0, "reused": 0}
        self._mounts = os.open("/proc/self/mounts", os.O_RDONLY | os.O_CLOEXEC)
        self._mounts_changed = watcher(self._mounts)
        self._mounts_of_thread = os.open("/proc/self/mounts", os.O_RDONLY | os.O_CLOEXEC)  # each tells once of a change

    # -- for a start -----------------------------------------------------------------------------------------------------

    def take(self, plan: LaunchPlan, look: Look) -> NativeBox:
        """A box for a plan that `protect.prepare` has looked at, ready or being made. Raises IsolationError."""
        key = key_of(plan)
        with self._lock:
            self._look_at_host()
            entry = self._entries.get(key)
            seen: Identities = ()
            if entry is not None:
                seen = identities(entry.steps, look)
                if not self._good(entry, seen):
                    self._forget(entry)
                    entry = None
            if entry is None:
                return self._first(key, plan)
            box = self._kept(entry, plan.kept_for) or self._ready(entry) or self._soon(entry, plan.kept_for)
            if box is not None:
                self._counts["warm" if box.uses == 1 else "reused"] += 1
            else:
                try:
                    box = self._make_box(entry.template, plan, seen if entry.template.seen is None else None, False)
                except (IsolationError, OSError):
                    self._fail(time.monotonic())
                    return self._first(key, plan)
                if not box.begun():  # a millisecond, in which the box goes on; nothing of the command is with it yet
                    self._give_up(box)
                    self._forget(entry)
                    return self._first(key, plan)
                self._counts["template"] += 1
            box.on_start, box.on_end = partial(self._started, entry), partial(self._ended, entry)
            return box

    def _first(self, key: Hashable, plan: LaunchPlan) -> NativeBox:
        """A box of a template that is made for it, and kept if others can have boxes of it too."""
        steps = mountsteps.steps(plan)
        template = self._make_template(plan, steps)
        template.hold()
        try:
            box = self._make_box(template, plan, None, False)
            self._counts["cold"] += 1
            entry = None
            if steps.shared and self.caps.budget > 0:
                template.hold()
                entry = self._entries[key] = Entry(key, plan, steps, template, Demand(last=time.monotonic()))
                box.on_start = partial(self._started, entry)
            box.on_end = partial(self._ended, entry)
            return box
        finally:
            template.let_go()

    def _good(self, entry: Entry, seen: Identities) -> bool:
        template = entry.template
        template.look()
        return not template.failure and (template.seen is None or template.seen == seen) and template.unchanged()

    def _kept(self, entry: Entry, session: str) -> NativeBox | None:
        if not session:
            return None
        found, useless = entry.kept.take(session)
        for box in useless:
            self._give_up(box)
        return found

    def _soon(self, entry: Entry, session: str) -> NativeBox | None:
        """The box of the session's last command, when its process 1 says in a moment that it is as it was: making another
        one takes longer."""
        looking = entry.kept.of(session)
        if not looking or not looking[-1].says(SOON):
            return None
        return self._kept(entry, session)

    def _ready(self, entry: Entry) -> NativeBox | None:
        waiting = []
        found = None
        while entry.boxes and found is None:
            box = entry.boxes.pop(0)
            if not box.ready:
                box.look()
            if box.usable():
                found = box
            elif box.ready or box.ended():
                self._give_up(box)
            else:
                waiting.append(box)  # being made
        entry.boxes = waiting + entry.boxes
        return found

    def _started(self, entry: Entry) -> None:
        """Called by a box that has got its command: until then its command waits."""
        with self._lock:
            now = self._last_event = time.monotonic()
            entry.demand = pool.started(entry.demand, now)
            self._work()

    def _ended(self, entry: Entry | None, box: NativeBox) -> None:
        """Called by the box that has ended. What it still takes is given back in a quiet moment."""
        with self._lock:
            if self._closed:
                box.dispose()
                return
            now = self._last_event = time.monotonic()
            if entry is not None:
                self._keep_kept(entry, box, now)
                entry.demand = pool.ended(entry.demand, now)
            self._over.append(box)
            self._work()

    def _keep_kept(self, entry: Entry, box: NativeBox, now: float) -> None:
        """Have the box wait for its session's next command, if it can and may."""
        if not box.session or self._entries.get(entry.key) is not entry:
            return
        total = sum(len(each.kept) for each in self._entries.values())
        places = pool.keeps(entry.stock(), self.caps, box.uses, total)
        successor = box.successor() if places else None
        if successor is not None:
            for each in entry.kept.oldest(places - 1):
                self._give_up(each)
            entry.kept.add(successor, now)
            self._refused = ""

    # -- keeping ---------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """See that the thread looks at things soon; it is woken only when it sleeps, which costs a start some time."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="sandboxd-pool", daemon=True)
            self._thread.start()
        elif self._sleeps:
            os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        """The thread's life. While it sleeps it still sees the host's mounts change: boxes would keep a file system in use."""
        poll = watcher(self._mounts_of_thread)
        poll.register(self._wake, select.POLLIN)
        while not self._closed:
            with self._disposing:
                with self._lock:
                    now = time.monotonic()
                    again = self._keep(now)
                    over, self._over = self._over, []
                    busy = bool(over) or now - self._last_event < AWAKE
                    self._sleeps = not busy
                for box in over:  # without the lock, which a start may want: a control group takes milliseconds to go
                    box.dispose()
            wait = None if again is None else max(0.0, again - time.monotonic())
            if busy and (wait is None or wait > pool.QUIET):
                wait = pool.QUIET
            ready = poll.poll(None if wait is None else wait * 1000 + 1)
            if any(fd == self._mounts_of_thread for fd, _ in ready):
                self.drain()
            if any(fd == self._wake for fd, _ in ready):
                os.eventfd_read(self._wake)

    def _keep(self, now: float) -> float | None:
        """Do what `pool` decides; when to do so again."""
        if self._closed:
            return None
        self._look_at_host()
        for entry in list(self._entries.values()):
            self._look_at(entry, now)
        stocks = {key: entry.stock() for key, entry in self._entries.items()}
        decision = pool.decide(stocks, self.caps, now, self._last_event)
        for key in decision.expire:
            self._forget(self._entries[key])
        for key, count in decision.drop.items():
            for _ in range(count):
                self._give_up(self._entries[key].boxes.pop())
        for key, count in decision.part.items():
            for box in self._entries[key].kept.oldest(count):
                self._give_up(box)
        if decision.make and now < self._pause_until:
            return self._pause_until
        making = False
        for key, count in decision.make.items():
            chosen = self._entries[key]
            if chosen.template.seen is None:  # not ready itself
                making = True
                continue
            if chosen.template.seen != identities(chosen.steps, Look()) or not chosen.template.unchanged():
                self._forget(chosen)
                continue
            for _ in range(count):
                try:
                    chosen.boxes.append(self._make_box(chosen.template, chosen.plan, None, True))
                except (IsolationError, OSError):
                    self._fail(now)
                    return self._pause_until
            making = True
        return min(now + pool.QUIET, decision.again or now + 1.0) if making else decision.again

    def _look_at(self, entry: Entry, now: float) -> None:
        """Give up a template that cannot be made, and everything when a box cannot."""
        entry.template.look()
        if entry.template.failure:
            self._forget(entry)
            return
        for box in entry.kept.useless():
            self._give_up(box)
        for box in entry.boxes:
            box.look()
        if any(box.ended() for box in entry.boxes):
            self._fail(now)

    def _look_at_host(self) -> None:
        if self._mounts_changed.poll(0):
            self.empty()

    def _fail(self, now: float) -> None:
        self._pause_until = now + PAUSE
        self.empty()

    def _forget(self, entry: Entry) -> None:
        if self._entries.get(entry.key) is not entry:
            return  # that was done before
        del self._entries[entry.key]
        for box in entry.all():
            self._give_up(box)
        entry.boxes, entry.kept = [], Kept()
        entry.template.let_go()

    def _give_up(self, box: NativeBox) -> None:
        """The thread disposes of it: removing a control group of version 1 takes milliseconds."""
        self._refused = box.refused or self._refused
        box.retire()
        self._over.append(box)

    # -- for its owner ---------------------------------------------------------------------------------------------------

    def empty(self) -> None:
        """Give up every template and ready box, which the thread then ends; boxes with a command are not touched."""
        with self._lock:
            for entry in list(self._entries.values()):
                self._forget(entry)
            if self._over and not self._closed:
                self._work()

    def drain(self) -> None:
        """Like `empty`, and end them here. Blocking: milliseconds for each."""
        with self._disposing:  # so that nothing is left when this returns
            with self._lock:
                self.empty()
                over, self._over = self._over, []
            for box in over:
                box.dispose()

    def figures(self) -> Figures:
        with self._lock:
            boxes = sum(box.ready for entry in self._entries.values() for box in entry.all())
            counts = self._counts
            return Figures(boxes, len(self._entries), counts["warm"], counts["template"], counts["cold"], counts["reused"])

    def forget(self, session: str, tmp: str) -> None:
        """Give up what waits for a session that has ended: its boxes, and every template that shows its `tmp`."""
        with self._lock:
            for entry in list(self._entries.values()):
                if any(mount.source == tmp for mount in entry.plan.mounts):
                    self._forget(entry)
                else:
                    for box in entry.kept.forget(session):
                        self._give_up(box)
            if self._over and not self._closed:
                self._work()

    def expect(self, plan: LaunchPlan, count: int) -> bool:
        """Have so many boxes ready soon for a plan that `protect.prepare` has looked at; False when it can have none, or only in
        the place of a template that is kept. Raises IsolationError."""
        steps = mountsteps.steps(plan)
        if not steps.shared or min(self.caps.budget, self.caps.per_template) < count:
            return False
        with self._lock:
            if self._closed:
                return False
            key, now = key_of(plan), time.monotonic()
            entry = self._entries.get(key)
            if entry is None:
                if len(self._entries) >= self.caps.templates:
                    return False
                entry = self._entries[key] = Entry(key, plan, steps, self._make_template(plan, steps))
                entry.template.hold()
            entry.demand = pool.expected(entry.demand, count, now)
            self._work()
        return True

    def prepare(self, plan: LaunchPlan, count: int, timeout: float) -> bool:
        """Expect so many commands, and wait until their boxes are ready; False when they are not in `timeout` seconds."""
        end = time.monotonic() + timeout
        while (left := end - time.monotonic()) > 0:  # again when the host has changed meanwhile
            if not self.expect(plan, count):
                return False
            if self.await_ready(plan, count, left):
                return True
            time.sleep(0.01)
        return False

    def await_ready(self, plan: LaunchPlan, count: int, timeout: float) -> bool:
        """Wait until so many boxes are ready for a plan; False when there are none, or not in `timeout` seconds."""
        key, end = key_of(plan), time.monotonic() + timeout
        while time.monotonic() < end:
            with self._lock:
                entry = self._entries.get(key)
                if entry is None:
                    return False
                for box in entry.boxes:
                    box.look()
                if sum(box.ready for box in entry.boxes) >= count:
                    return True
            time.sleep(0.001)
        return False

    def await_kept(self, plan: LaunchPlan, timeout: float) -> str:
        """Wait until a box waits for the plan's session: ""; else why none does, or does not in `timeout` seconds."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            with self._lock:
                entry = self._entries.get(key_of(plan))
                boxes = entry.kept.of(plan.kept_for) if entry is not None else []
                for box in boxes:
                    box.look()
                if any(box.ready for box in boxes):
                    return ""
                if all(box.over() for box in boxes):
                    return next((box.refused for box in boxes), self._refused) or "no box was kept"
            time.sleep(0.001)
        return "no box has said that it is as it was"

    def close(self) -> None:
        with self._disposing, self._lock:
            if self._closed:
                return
            self._closed = True
            self.drain()
            os.eventfd_write(self._wake, 1)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(5)
        with self._lock:
            os.close(self._mounts)
            os.close(self._mounts_of_thread)
            os.close(self._wake)
