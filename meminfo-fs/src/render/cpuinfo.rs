//! Text of `/proc/cpuinfo`: the machine's, cut to some processors. Pure.
//!
//! Rendered once for each file system, since it does not change.

/// The machine's `text` with the blocks of these processors alone. Text outside a processor's block (some architectures
/// have a last one about the machine) stays. The clock's rate of the moment is left out: it depends on the neighbours.
pub(crate) fn cpuinfo(text: &str, processors: &[u32]) -> String {
    let mut out = String::new();
    for block in text.split_inclusive("\n\n") {
        let number = block.lines().find_map(|line| value(line, "processor")?.parse::<u32>().ok());
        if number.is_some_and(|number| !processors.contains(&number)) {
            continue;
        }
        out.extend(block.split_inclusive('\n').filter(|line| value(line, "cpu MHz").is_none()));
    }
    out
}

/// Value on a line with this name.
fn value<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (found, value) = line.split_once(':')?;
    (found.trim_end() == name).then(|| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    const X86: &str = "processor\t: 0\nmodel name\t: AMD EPYC\ncpu MHz\t\t: 2596.096\nflags\t\t: fpu avx2\n\
        power management:\n\nprocessor\t: 1\nmodel name\t: AMD EPYC\ncpu MHz\t\t: 2596.096\nflags\t\t: fpu avx2\n\
        power management:\n\n";
    const X86_FIRST: &str = "processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu avx2\npower management:\n\n";
    const ARM: &str = "processor\t: 0\nFeatures\t: fp asimd\n\nprocessor\t: 1\nFeatures\t: fp asimd\n\n\
        Hardware\t: Board\nSerial\t\t: 0\n";
    const ARM_SECOND: &str = "processor\t: 1\nFeatures\t: fp asimd\n\nHardware\t: Board\nSerial\t\t: 0\n";

    #[test]
    fn the_blocks_of_some_processors() {
        let table = [(X86, &[0][..], X86_FIRST), (X86, &[], ""), (ARM, &[1], ARM_SECOND), ("", &[0], "")];
        for (text, processors, expected) in table {
            assert_eq!(cpuinfo(text, processors), expected, "{processors:?}");
        }
        assert_eq!(cpuinfo(ARM, &[0, 1]), ARM);
    }
}
