"""What a fault is."""
import dataclasses
import re


@dataclasses.dataclass
class Fault:
    name: str
    file: str  # from the root of the repository
    old: str  # occurs once in the file; a blank stands for any white space
    new: str
    programs: list[str] | None = None  # the test programs that may find it, in order; None: those of the list
    harmless: str | None = None  # why no test has to find it

    def plant(self, text: str) -> str:
        """The text with the fault in it. Raises ValueError unless `old` occurs exactly once."""
        pattern = r"\s+".join(re.escape(word) for word in self.old.split())
        planted, count = re.subn(pattern, lambda _: self.new, text)
        if count != 1:
            raise ValueError(f"{self.file}: {count} places for the fault \"{self.name}\", must be 1")
        return planted
