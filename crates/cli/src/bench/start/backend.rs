use clap::ValueEnum;

/// A way to reach NCCL's functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    /// The library that this program is linked with, by its feature `link`
    #[cfg_attr(not(feature = "link"), value(hide = true))]
    Link,
    /// A library that is loaded at run time
    Dlopen,
    /// The CPU backend in this program
    Cpu,
}

impl Backend {
    /// Returns the name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Link => "link",
            Self::Dlopen => "dlopen",
            Self::Cpu => "cpu",
        }
    }
}
