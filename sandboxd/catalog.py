# SPDX-License-Identifier: GPL-3.0-or-later
"""What this daemon can confine and knows of tools: profiles, what the trial runs showed, effect tables."""

from __future__ import annotations

from dataclasses import dataclass

from sandboxd.config import Config, Directories
from sandboxd.effects.tables import Tables
from sandboxd.errors import IsolationError, NotFound, RequestError
from sandboxd.isolation import backends, profiles
from sandboxd.model import Backend, Enforcement, Probe, Profile, Strength
from sandboxd.policy.rules import excluded_rules


@dataclass(frozen=True, slots=True)
class _Look:
    bare: bool = False
    full: bool = False
    enforcement: Enforcement | None = None


class Catalog:
    """Reads the shipped and the user's files at the start and at each reload. Raises ProfileError or TableError then."""

    def __init__(self, config: Config, dirs: Directories, probes: tuple[Probe, ...]) -> None:
        self._dirs = dirs
        self.probes = probes
        self._config = config
        self._looked: dict[str, _Look] = {}
        self._looked_at: tuple[object, object] = (None, None)
        self._profiles, self.tables = self._read(config)
        self.excluded = excluded_rules(config.policy.excluded_commands)

    def reload(self, config: Config) -> None:
        """All or nothing: on an error what was in force stays."""
        excluded = excluded_rules(config.policy.excluded_commands)
        self._profiles, self.tables = self._read(config)
        self.excluded = excluded
        self._config = config

    def _read(self, config: Config) -> tuple[dict[str, Profile], Tables]:
        directories = self._directories(config)
        loaded = {name: profiles.load(name, directories) for name in profiles.names(directories)}
        if config.isolation.profile not in loaded:
            known = ", ".join(sorted(loaded))
            raise RequestError(f"no profile `{config.isolation.profile}`", field="isolation.profile", fix=f"use one of {known}")
        tables = Tables((self._dirs.effects,))
        tables.check()
        return loaded, tables

    def _directories(self, config: Config) -> tuple[str, ...]:
        return (f"{self._dirs.config}/profiles", *config.isolation.profile_dirs, profiles.SHIPPED_DIR)

    @property
    def profile_dirs(self) -> tuple[str, ...]:
        return self._directories(self._config)

    def profile(self, name: str) -> Profile:
        """A profile by name, "" for the default one. Raises NotFound."""
        found = self._profiles.get(name or self._config.isolation.profile)
        if found is None:
            raise NotFound(f"no profile `{name}`", field="profile", fix=f"use one of {', '.join(sorted(self._profiles))}")
        return found

    def profiles(self) -> tuple[Profile, ...]:
        return tuple(self._profiles[name] for name in sorted(self._profiles))

    def backend(self, profile: Profile, *, named: bool = True) -> Backend:
        """What runs this profile. Raises IsolationError with the fix when nothing can.

        `named`: the session asked for this profile by name; without that nothing ever runs bare.
        """
        preferred = self._config.isolation.backend.value
        return backends.choose(profile, self.probes, explicit=named, preferred=preferred)

    def no_sandbox(self) -> Backend:
        """What runs a command that a human agreed to let run without one. Raises IsolationError when it does not work."""
        probe = next((probe for probe in self.probes if probe.backend == backends.BARE), None)
        if probe is None or not probe.works:
            raise IsolationError(f"no command can run without a sandbox here: {probe.error if probe else 'not tried'}")
        return next(backend for backend in backends.BACKENDS if backend.name == backends.BARE)

    def bare(self, profile: Profile) -> bool:
        """Whether a command of this profile would run without any sandbox."""
        return self._look(profile).bare

    def full(self, profile: Profile) -> bool:
        """Whether every layer of this profile is enforced."""
        return self._look(profile).full

    def enforcement(self, profile: Profile) -> Enforcement | None:
        """What the chosen backend's trial run enforced; None when nothing can run this profile."""
        return self._look(profile).enforcement

    def _look(self, profile: Profile) -> _Look:
        """What would run a profile, worked out once for these trial runs and this configuration."""
        if self._looked_at[0] is not self.probes or self._looked_at[1] is not self._config:
            self._looked, self._looked_at = {}, (self.probes, self._config)
        found = self._looked.get(profile.name)
        if found is None:
            found = self._looked[profile.name] = self._choice(profile)
        return found

    def _choice(self, profile: Profile) -> _Look:
        try:
            name = self.backend(profile).name
        except IsolationError:
            return _Look()  # then nothing runs
        enforcement = next((probe.enforcement for probe in self.probes if probe.backend == name), None)
        full = enforcement is not None and enforcement.overall is Strength.FULL
        return _Look(name == backends.BARE, full, enforcement)
