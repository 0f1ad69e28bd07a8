"""Inode numbers as they appear: f1, f2, ... so that two kernels can be compared though their numbers differ."""


class Names:
    def __init__(self) -> None:
        self._names: dict[tuple[str, object], str] = {}

    def name(self, kind: str, number: object) -> str:
        known = sum(each[0] == kind for each in self._names)
        return self._names.setdefault((kind, number), f"{kind}{known + 1}")
