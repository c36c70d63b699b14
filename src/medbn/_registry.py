"""One registry for everything that has a name: estimators, methods, objectives, datasets, models, recipes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar, overload

from ._errors import unknown_name

T = TypeVar("T")
Value = TypeVar("Value")


class Registry(Generic[T]):
    """Named values of one kind, open to users' own.

    Args:
        kind: what one of them is called in error messages, such as ``"estimator"``.
        forbidden: characters that a name may not have, because names are written together with something else.

    >>> shapes = Registry[int]("shape")
    >>> _ = shapes.register("square", 4)
    >>> shapes.get("square"), shapes.available()
    (4, ['square'])
    >>> shapes.get("sqare")
    Traceback (most recent call last):
        ...
    ValueError: unknown shape 'sqare'. Did you mean 'square'? Available: square.
    """

    def __init__(self, kind: str, *, forbidden: str = "") -> None:
        self.kind = kind
        self.forbidden = forbidden
        self._values: dict[str, T] = {}

    @overload
    def register(self, name: str, value: None = None, *, replace: bool = ...) -> Callable[[Value], Value]: ...
    @overload
    def register(self, name: str, value: Value, *, replace: bool = ...) -> Value: ...

    def register(
        self, name: str, value: Value | None = None, *, replace: bool = False
    ) -> Value | Callable[[Value], Value]:
        """Make ``get(name)`` return a value: given here, or what the returned decorator decorates.

        Args:
            name: a non-empty string. One that is taken is an error.
            value: what to register; without it, a decorator is returned.
            replace: let a name that is taken stand for the new value from now on.
        """
        self.check_name(name)
        if name in self._values and not replace:
            raise ValueError(f"{self.kind} {name!r} exists already; pass replace=True to replace it.")

        def add(value: Value) -> Value:
            self._values[name] = value  # type: ignore[assignment]
            return value

        return add if value is None else add(value)

    def register_class(self, name: str, *, replace: bool = False) -> Callable[[Value], Value]:
        """Return a decorator that registers a class and sets its attribute ``name``.

        Unless its body sets a ``label``, what a report calls it, the class gets that attribute too.
        """
        self.check_name(name)

        def add(kind: Any) -> Any:
            added = self.register(name, kind, replace=replace)
            kind.name = name
            if "label" not in vars(kind):
                kind.label = name.replace("_", " ")
            return added

        return add

    def unregister(self, name: str) -> None:
        """Remove a name; references to the value stay valid."""
        self.get(name)
        del self._values[name]

    def get(self, name: str) -> T:
        """Return the value of that name; an error lists the names that there are."""
        if not isinstance(name, str) or name not in self._values:
            raise unknown_name(self.kind, name, self._values)
        return self._values[name]

    def available(self) -> list[str]:
        """Return all names, in the order in which they were registered."""
        return list(self._values)

    def check_name(self, name: object) -> None:
        """Raise a TypeError unless ``name`` can be a name here."""
        if not isinstance(name, str) or not name or any(character in name for character in self.forbidden):
            without = f" without {self.forbidden!r}" if self.forbidden else ""
            article = "an" if self.kind[0] in "aeiou" else "a"
            raise TypeError(f"the name of {article} {self.kind} is a non-empty string{without}, got {name!r}.")

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)
