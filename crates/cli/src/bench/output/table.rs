//! The table, written line by line. Lines, columns and blanks are the same as in nccl-tests 2.19.6.

use std::io::{Result, Write};
use std::time::SystemTime;

use super::report::{Library, Measured, Report, Row, WrongElement};
use crate::bench::arguments::{Blocking, Columns, Procedure};
use crate::bench::data::FirstWrong;
use crate::bench::measure::ranks::Description;
use crate::bench::parameters::{Parameters, Step};
use crate::bench::statistics::digits;
use crate::library::EMULATION;
use crate::output::in_line;

/// The bytes of GPU memory used for initialization, buffers and operations.
pub(crate) type Usage = [i64; 3];

/// Writes the library and its file, the CUDA emulation if there is one, the parameters, the ranks and the column titles.
pub(super) fn head(
    out: &mut impl Write,
    name: &str,
    library: &Library,
    parameters: &Parameters,
    ranks: &[Description],
) -> Result<()> {
    let &Parameters { threads, ranks_per_thread, gpus, min_bytes, max_bytes, step, unalign, .. } = parameters;
    let Procedure { iters, agg_iters, warmup_iters, check, cudagraph, .. } = parameters.procedure;
    let (step, unit) = match step {
        Step::Factor(factor) => (factor, "factor"),
        Step::Bytes(bytes) => (bytes, "bytes"),
    };
    let Library { file, stand_in, .. } = library;
    let file = file.as_ref().map(|file| format!("NCCL's file: {file}"));
    let driver = stand_in.as_ref().map(|file| format!("CUDA driver: {file}, {EMULATION}, devices: {gpus}"));
    writeln!(out, "# nccl {} with NCCL {name}", env!("CARGO_PKG_VERSION"))?;
    file.iter().chain(&driver).try_for_each(|line| writeln!(out, "# {line}"))?;
    writeln!(out, "# Collective test starting: {}", parameters.benchmark)?;
    writeln!(
        out,
        "# nThread {threads} nGpus {ranks_per_thread} minBytes {min_bytes} maxBytes {max_bytes} step: {step}({unit}) \
         warmup iters: {warmup_iters} iters: {iters} agg iters: {agg_iters} validation: {check} graph: {cudagraph} \
         unalign: {unalign}",
    )?;
    let blocking = match parameters.procedure.blocking {
        Blocking::None => None,
        Blocking::Barrier => Some("wait and barrier after each iteration"),
        Blocking::Wait => Some("wait after each iteration, no barrier"),
        Blocking::UncountedBarrier => Some("wait and barrier after each iteration; time excludes barrier"),
    };
    blocking.iter().try_for_each(|how| writeln!(out, "# Blocking Enabled: {how}"))?;
    let Columns { per_iter_timing, per_iter_skip: skipped, .. } = parameters.columns;
    if per_iter_timing {
        let skips = if skipped > 0 { format!(", without the first {skipped}") } else { String::new() };
        let report = "slowest rank of single iterations, measured apart";
        writeln!(out, "# Per-Iteration Report: {report}{skips}")?;
    }
    if parameters.parallel_init {
        writeln!(out, "# Parallel Init Enabled: threads initialize their ranks at the same time")?;
    }
    writeln!(out, "#\n# Using devices")?;
    for Description { rank, device, .. } in ranks {
        let name = in_line(rank.device.as_deref().unwrap_or("[host memory]"));
        let (number, pid, host) = (rank.rank, rank.pid, in_line(&rank.host));
        let rank = format!("#  Rank {number:2} Group  0 Pid {pid:6} on {host:>10}");
        writeln!(out, "{rank} device {device:2} {name}")?;
    }
    if let Some(note) = parameters.reduction() {
        writeln!(out, "#\n# {note}")?;
    }
    writeln!(out, "#")?;
    titles(out, parameters)
}

fn titles(out: &mut impl Write, parameters: &Parameters) -> Result<()> {
    let Columns { report_cputime, report_timestamps, per_iter_timing, .. } = parameters.columns;
    let time = if report_cputime { "cputime" } else { "time" };
    let (title, format) = if report_timestamps { ("timestamp", "%Y-%m-%d %H:%M:%S") } else { ("", "") };
    let width = if report_timestamps { 19 } else { 0 };
    let mut both = "         out-of-place                       in-place          ";
    let [mut titles, mut units] = <[String; 2]>::default();
    if per_iter_timing {
        both = "            out-of-place (+ per-iteration)                                in-place (+ per-iteration)";
        titles = iteration_columns(["i_min", "i_max", "i_p99", "i_cv%"]);
        units = iteration_columns(["(us)", "(us)", "(us)", "(%)"]);
    }
    writeln!(out, "# {}  {both}", fields(10, ["", "", "", "", ""]))?;
    for (names, columns, more, last) in [
        (["size", "count", "type", "redop", "root"], [time, "algbw", "busbw", "#wrong"], titles, title),
        (["(B)", "(elements)", "", "", ""], ["(us)", "(GB/s)", "(GB/s)", ""], units, format),
    ] {
        let [time, algbw, busbw, wrong] = columns;
        let form = format!("  {time:>7}  {algbw:>6}  {busbw:>6}  {wrong:>6}{more}");
        writeln!(out, "# {}{form}{form} {last:>width$}", fields(10, names))?;
    }
    Ok(())
}

pub(super) fn row(
    out: &mut impl Write,
    parameters: &Parameters,
    row: &Row,
    columns: [Option<[f64; 4]>; 2],
    wrong: &[WrongElement],
) -> Result<()> {
    let root = row.root.map_or_else(|| "-1".into(), |root| root.to_string());
    let names =
        [&row.bytes.to_string(), &row.count.to_string(), &row.data_type, &parameters.op_name(), &root];
    let mut line = fields(12, names.map(|name| &**name));
    for (measured, columns) in [&row.out_of_place, &row.in_place].into_iter().zip(columns) {
        line += &measured.as_ref().map_or("      N/A     N/A     N/A    N/A".into(), form);
        if parameters.columns.per_iter_timing {
            let texts = columns.map(|values| values.map(|value| number(value, 7)));
            let texts = texts.unwrap_or_else(|| std::array::from_fn(|_| "N/A".into()));
            line += &iteration_columns(texts.each_ref().map(String::as_str));
        }
    }
    if parameters.columns.report_timestamps {
        let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        line += &format!("{:>21}", now.replace('T', " ").trim_end_matches('Z'));
    }
    writeln!(out, "{line}")?;
    for WrongElement { in_place, rank, first, .. } in wrong {
        let FirstWrong { offset, got, expected } = first;
        let form = if *in_place { "in-place" } else { "out-of-place" };
        let element = format!("{form}, rank {rank}, element {offset}");
        writeln!(out, "# wrong: {element}: got {got}, expected {expected}")?;
    }
    out.flush()
}

/// Writes the table's last lines. `wrong` is the number of mismatches; `None` if results were not checked.
pub(super) fn foot(
    out: &mut impl Write,
    report: &Report,
    wrong: Option<u64>,
    usage: Option<Usage>,
) -> Result<()> {
    let verdict = match wrong {
        Some(0) => "0 OK".into(),
        // The number of results with mismatches, which nccl-tests counts instead of the mismatches.
        Some(_) => format!("{} FAILED", report.wrong.len()),
        None => "N/A".into(),
    };
    if report.interrupted {
        writeln!(out, "# Interrupted after {} rows", report.rows.len())?;
    }
    writeln!(out, "# {:<20} : {verdict}", "Out of bounds values")?;
    writeln!(out, "# {:<20} : {} ", "Avg bus bandwidth", general(report.average_bus_bandwidth))?;
    if report.ranks.len() == 1 && report.average_bus_bandwidth == 0.0 {
        writeln!(out, "# One rank has no bus bandwidth: no data moves between ranks")?;
    }
    writeln!(out, "#\n# Collective test concluded: {}", report.operation)?;
    if let Some(usage) = usage {
        writeln!(out, "# {:<20} : {}", "GPU memory usage", usage_text(usage))?;
    }
    writeln!(out, "#")?;
    out.flush()
}

fn usage_text(usage: Usage) -> String {
    let total = three_digits(usage.iter().sum());
    let [initialization, buffers, operations] = usage.map(three_digits);
    format!(
        "Initialization {initialization} | User-Allocated {buffers} | Collective {operations} | Total  {total}"
    )
}

fn three_digits(bytes: i64) -> String {
    let (mut amount, mut unit) = (bytes as f64, "B");
    for larger in ["KB", "MB", "GB"] {
        if amount.abs() >= 1024.0 {
            (amount, unit) = (amount / 1024.0, larger);
        }
    }
    format!("{} {unit}", digits(amount, 3, 2))
}

fn fields(width: usize, [size, count, data_type, op, root]: [&str; 5]) -> String {
    format!("{size:>width$}  {count:>12}  {data_type:>8}  {op:>6}  {root:>6}")
}

fn form(measured: &Measured) -> String {
    let &Measured { time_us, algbw, busbw, wrong, .. } = measured;
    let wrong = wrong.map_or_else(|| "  N/A".into(), |wrong| format!("{:>6}", general(wrong as f64)));
    format!("  {:>7}  {:>6}  {:>6}  {wrong}", number(time_us, 7), number(algbw, 6), number(busbw, 6))
}

fn iteration_columns(texts: [&str; 4]) -> String {
    texts.map(|text| format!("  {text:>7}")).concat()
}

/// Formats a number with as many decimals as fit the width, at most two.
fn number(value: f64, width: usize) -> String {
    let fitting = |decimals| Some(format!("{value:.decimals$}")).filter(|text| text.len() <= width);
    let decimals = [2, 1, 0].into_iter();
    decimals.filter_map(fitting).next().unwrap_or_else(|| exponent(value, usize::from(width >= 7)))
}

/// Formats a number as C's `%g` does: six digits, without zeros at the end.
fn general(value: f64) -> String {
    let text = exponent(value, 5);
    let power = text.rsplit_once('e').and_then(|(_, power)| power.parse::<i32>().ok());
    let shorten = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    match (power, text.split_once('e')) {
        (Some(power @ -4..6), _) => shorten(&format!("{value:.*}", (5 - power) as usize)),
        (_, Some((digits, power))) => format!("{}e{power}", shorten(digits)),
        _ => text,
    }
}

/// Formats a number as C's `%e` does: an exponent has a sign and two digits.
fn exponent(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$e}");
    let parts = text.split_once('e').and_then(|(digits, power)| Some((digits, power.parse::<i32>().ok()?)));
    parts.map_or(text.clone(), |(digits, power)| format!("{digits}e{power:+03}"))
}

#[cfg(test)]
#[path = "../../../tests/unit/bench_table.rs"]
mod tests;
