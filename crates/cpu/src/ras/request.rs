//! The requests, each a line: keywords in any case, with one blank between words.

/// The names of a profiler's events.
const PROFILER_EVENTS: &str = "group coll p2p proxyop proxystep proxyctrl kernelch netplugin groupapi collapi p2papi \
    kernellaunch cecoll cesync cebatch";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    Protocol,
    /// Nothing here waits for other processes.
    Timeout,
    Format(Format),
    Status {
        is_verbose: bool,
    },
    Monitor(EventGroups),
    /// There is no profiler.
    ProfilerMask,
    Diagnostics,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Format {
    #[default]
    Text,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct EventGroups {
    pub(super) lifecycle: bool,
    pub(super) trace: bool,
}

impl Request {
    /// Parses a request, without its end.
    ///
    /// # Errors
    /// The line to answer.
    pub(super) fn parse(line: &str) -> Result<Self, String> {
        let after = |keywords: &str| {
            let (start, rest) = line.split_at_checked(keywords.len())?;
            start.eq_ignore_ascii_case(keywords).then_some(rest)
        };
        let is = |keywords: &str| after(keywords) == Some("");
        if is("STATUS") {
            Ok(Self::Status { is_verbose: false })
        } else if is("VERBOSE STATUS") {
            Ok(Self::Status { is_verbose: true })
        } else if is("DIAGNOSTICS") {
            Ok(Self::Diagnostics)
        } else if after("CLIENT PROTOCOL ").is_some() {
            Ok(Self::Protocol)
        } else if let Some(seconds) = after("TIMEOUT ") {
            let is_valid = seconds.is_empty() || seconds.parse::<f64>().is_ok_and(|seconds| seconds >= 0.0);
            if is_valid { Ok(Self::Timeout) } else { Err(format!("ERROR: Invalid timeout value {seconds}")) }
        } else if let Some(format) = after("SET FORMAT ") {
            match format.to_ascii_lowercase().as_str() {
                "text" => Ok(Self::Format(Format::Text)),
                "json" => Ok(Self::Format(Format::Json)),
                _ => Err(format!("ERROR: Invalid format {format}")),
            }
        } else if is("MONITOR") {
            Ok(Self::Monitor(EventGroups { lifecycle: true, trace: false }))
        } else if let Some(groups) = after("MONITOR ") {
            EventGroups::parse(groups).map(Self::Monitor)
        } else if let Some(mask) = after("CONTROL PROFILER_MASK ") {
            if is_profiler_mask(mask) {
                Ok(Self::ProfilerMask)
            } else {
                Err(format!("ERROR: Invalid profiler mask value '{mask}'"))
            }
        } else if let Some(subcommand) = after("CONTROL ") {
            Err(format!("ERROR: Unknown CONTROL subcommand '{subcommand}'"))
        } else {
            Err(format!("ERROR: Unknown command {line}"))
        }
    }
}

impl EventGroups {
    fn parse(names: &str) -> Result<Self, String> {
        let mut groups = Self::default();
        for name in names.split(',') {
            match name.to_ascii_lowercase().as_str() {
                "lifecycle" => groups.lifecycle = true,
                "trace" => groups.trace = true,
                "all" => groups = Self { lifecycle: true, trace: true },
                _ => return Err(format!("ERROR: Invalid event group '{name}'")),
            }
        }
        Ok(groups)
    }

    pub(super) fn is_empty(self) -> bool {
        !self.lifecycle && !self.trace
    }
}

fn is_profiler_mask(mask: &str) -> bool {
    let mask = mask.to_ascii_lowercase();
    let number = match mask.strip_prefix("0x") {
        Some(digits) => i64::from_str_radix(digits, 16),
        None => mask.parse(),
    };
    matches!(mask.as_str(), "none" | "all")
        || number.is_ok()
        || mask.split(',').all(|name| PROFILER_EVENTS.split(' ').any(|event| event == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_in_any_case_is_parsed() {
        let monitor = |lifecycle, trace| Request::Monitor(EventGroups { lifecycle, trace });
        for (line, request) in [
            ("CLIENT PROTOCOL 2", Request::Protocol),
            ("TIMEOUT 0", Request::Timeout),
            ("timeout 2.5", Request::Timeout),
            ("TIMEOUT ", Request::Timeout),
            ("set format JSON", Request::Format(Format::Json)),
            ("SET FORMAT text", Request::Format(Format::Text)),
            ("status", Request::Status { is_verbose: false }),
            ("Verbose Status", Request::Status { is_verbose: true }),
            ("MONITOR", monitor(true, false)),
            ("MONITOR trace", monitor(false, true)),
            ("monitor Lifecycle,trace", monitor(true, true)),
            ("MONITOR all", monitor(true, true)),
            ("CONTROL PROFILER_MASK none", Request::ProfilerMask),
            ("CONTROL PROFILER_MASK 0x1F", Request::ProfilerMask),
            ("control profiler_mask coll,P2P", Request::ProfilerMask),
            ("DIAGNOSTICS", Request::Diagnostics),
        ] {
            assert_eq!(Request::parse(line), Ok(request), "{line}");
        }
    }

    #[test]
    fn other_line_is_answered_with_its_mistake() {
        for (line, answer) in [
            ("", "ERROR: Unknown command "),
            ("STATUS ", "ERROR: Unknown command STATUS "),
            ("VERBOSE  STATUS", "ERROR: Unknown command VERBOSE  STATUS"),
            ("ärger", "ERROR: Unknown command ärger"),
            ("TIMEOUT -1", "ERROR: Invalid timeout value -1"),
            ("TIMEOUT x", "ERROR: Invalid timeout value x"),
            ("SET FORMAT xml", "ERROR: Invalid format xml"),
            ("MONITOR all,dead", "ERROR: Invalid event group 'dead'"),
            ("CONTROL PROFILER_MASK coll,x", "ERROR: Invalid profiler mask value 'coll,x'"),
            ("CONTROL RESET", "ERROR: Unknown CONTROL subcommand 'RESET'"),
        ] {
            assert_eq!(Request::parse(line), Err(answer.into()), "{line}");
        }
    }
}
