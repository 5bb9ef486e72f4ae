//! The output, in the columns of nccl-tests.

use std::io::{Result, Write};

use super::parameters::{Parameters, Step};
use super::shape::{Shape, bus_factor};
use crate::gpu::StandIn;

/// The measurement of one size, out of place or in place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measurement {
    pub(crate) seconds: f64,
    /// The number of wrong elements on all ranks; `None` if the results were not checked.
    pub(crate) wrong: Option<u64>,
}

/// The table, written line by line, with the sums for its last lines.
pub(crate) struct Table<W> {
    out: W,
    measurements: u32,
    bus_bandwidths: f64,
    wrong: Option<u64>,
}

impl<W: Write> Table<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out, measurements: 0, bus_bandwidths: 0.0, wrong: None }
    }

    /// Writes the parameters, the stand-in for CUDA if there is one, the ranks and the column titles.
    pub(crate) fn head(
        &mut self,
        library: &str,
        stand_in: Option<&StandIn>,
        parameters: &Parameters,
        ranks: &[String],
    ) -> Result<()> {
        let &Parameters { gpus, min_bytes, max_bytes, step, iters, warmup_iters, check, .. } = parameters;
        let threads = if parameters.processes { 1 } else { parameters.ranks };
        let (step, unit) = match step {
            Step::Factor(factor) => (factor, "factor"),
            Step::Bytes(bytes) => (bytes, "bytes"),
        };
        writeln!(self.out, "# nccl {} with NCCL {library}", env!("CARGO_PKG_VERSION"))?;
        if let Some(stand_in) = stand_in {
            writeln!(self.out, "# CUDA driver: {stand_in}, devices: {gpus}")?;
        }
        writeln!(
            self.out,
            "# nThread {threads} nGpus 1 minBytes {min_bytes} maxBytes {max_bytes} step: {step}({unit}) \
             warmup iters: {warmup_iters} iters: {iters} agg iters: 1 validation: {} graph: 0",
            u8::from(check)
        )?;
        writeln!(self.out, "#\n# Using devices")?;
        for rank in ranks {
            writeln!(self.out, "#  {rank}")?;
        }
        writeln!(self.out, "#")?;
        let empty = ["#", "", "", "", ""];
        self.line(empty, [format!("{:^31}", "out-of-place"), format!("{:^31}", "in-place")])?;
        let heads = columns(["time", "algbw", "busbw", "#wrong"]);
        self.line(["#       size", "count", "type", "redop", "root"], [heads.clone(), heads])?;
        let units = columns(["(us)", "(GB/s)", "(GB/s)", ""]);
        self.line(["#        (B)", "(elements)", "", "", ""], [units.clone(), units])
    }

    /// Writes the row of a size; `in_place` is `None` for an operation without an in-place form.
    pub(crate) fn row(
        &mut self,
        parameters: &Parameters,
        shape: &Shape,
        out_of_place: Measurement,
        in_place: Option<Measurement>,
    ) -> Result<()> {
        let bytes = shape.total() * parameters.data_type.size();
        let both = [Some(out_of_place), in_place].map(|measurement| match measurement {
            Some(measurement) => self.measured(parameters, bytes, measurement),
            None => columns(["N/A"; 4]),
        });
        let fields = [
            bytes.to_string(),
            shape.count.to_string(),
            parameters.data_type.to_string(),
            parameters.op().map_or_else(|| "none".into(), |op| op.to_string()),
            parameters.root().map_or_else(|| "-1".into(), |root| root.to_string()),
        ];
        self.line(fields.each_ref().map(String::as_str), both)
    }

    fn measured(&mut self, parameters: &Parameters, bytes: usize, measurement: Measurement) -> String {
        let Measurement { seconds, wrong } = measurement;
        let bandwidth = bytes as f64 / 1e9 / seconds;
        let bus_bandwidth = bandwidth * bus_factor(parameters.operation, parameters.ranks);
        self.measurements += 1;
        self.bus_bandwidths += bus_bandwidth;
        if let Some(wrong) = wrong {
            *self.wrong.get_or_insert(0) += wrong;
        }
        columns([
            &number(seconds * 1e6, 7),
            &number(bandwidth, 6),
            &number(bus_bandwidth, 6),
            &wrong.map_or_else(|| "N/A".into(), |wrong| wrong.to_string()),
        ])
    }

    /// Writes the sums. Returns the number of wrong elements of all rows.
    pub(crate) fn foot(mut self) -> Result<u64> {
        let verdict = match self.wrong {
            Some(0) => "0 OK".into(),
            Some(wrong) => format!("{wrong} FAILED"),
            None => "N/A".into(),
        };
        writeln!(self.out, "# Out of bounds values : {verdict}")?;
        let average = self.bus_bandwidths / f64::from(self.measurements.max(1));
        writeln!(self.out, "# Avg bus bandwidth    : {average:.6}\n#")?;
        self.out.flush()?;
        Ok(self.wrong.unwrap_or(0))
    }

    fn line(&mut self, fields: [&str; 5], both: [String; 2]) -> Result<()> {
        let [size, count, data_type, op, root] = fields;
        let [out_of_place, in_place] = both;
        // Titles are right-aligned like numbers, except after the `#` of a comment.
        let size = if size.starts_with('#') { format!("{size:<12}") } else { format!("{size:>12}") };
        let line =
            format!("{size}  {count:>12}  {data_type:>8}  {op:>6}  {root:>6}  {out_of_place}  {in_place}");
        writeln!(self.out, "{}", line.trim_end())
    }
}

fn columns([time, bandwidth, bus_bandwidth, wrong]: [&str; 4]) -> String {
    format!("{time:>7}  {bandwidth:>6}  {bus_bandwidth:>6}  {wrong:>6}")
}

/// Formats a number with as many decimals as fit the width, at most two.
fn number(value: f64, width: usize) -> String {
    let fitting = |decimals| Some(format!("{value:.decimals$}")).filter(|text| text.len() <= width);
    let decimals = [2, 1, 0].into_iter();
    decimals.filter_map(fitting).next().unwrap_or_else(|| format!("{value:.1e}"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{Measurement, Table, number};
    use crate::args::{Arguments, Command};
    use crate::bench::parameters::Parameters;
    use crate::bench::shape::Shape;

    #[test]
    fn number_fits_the_width() {
        let texts = [(0.0, "0.00"), (1.234, "1.23"), (9999.994, "9999.99"), (12_345.6, "12345.6")];
        for (value, text) in texts {
            assert_eq!(number(value, 7), text);
        }
        assert_eq!(number(1_234_567.0, 7), "1234567");
        assert_eq!(number(12_345_678.0, 7), "1.2e7");
        assert_eq!(number(999.996, 6), "1000.0");
    }

    fn table(arguments: &str, wrong: Option<u64>) -> (String, u64) {
        let words = ["nccl", "bench"].into_iter().chain(arguments.split_whitespace());
        let Command::Bench(arguments) = Arguments::try_parse_from(words).unwrap().command else {
            unreachable!()
        };
        let arguments = arguments.measure.unwrap();
        let parameters = Parameters::new(&arguments, 0, None).unwrap().remove(0);
        let shape = Shape::of(&parameters, 4000).unwrap();
        let mut out = Vec::new();
        let mut table = Table::new(&mut out);
        let measurement = Measurement { seconds: 1e-6, wrong };
        table.head("2.32.3 (here)", None, &parameters, &["Rank  0".into()]).unwrap();
        table.row(&parameters, &shape, measurement, (arguments.root == 0).then_some(measurement)).unwrap();
        let wrong = table.foot().unwrap();
        (String::from_utf8(out).unwrap(), wrong)
    }

    #[test]
    fn table_has_the_format_of_nccl_tests() {
        let (text, wrong) = table("all_reduce --ranks 4 -b 8 -e 4000 -f 2", Some(0));
        let expected = "\
# nThread 4 nGpus 1 minBytes 8 maxBytes 4000 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 \
validation: 1 graph: 0
#
# Using devices
#  Rank  0
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
        4000          1000     float     sum      -1     1.00    4.00    6.00       0     1.00    4.00    6.00       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 6.000000
#
";
        let (first, rest) = text.split_once('\n').unwrap();
        assert!(first.ends_with(" with NCCL 2.32.3 (here)"));
        assert_eq!(rest, expected);
        assert_eq!(wrong, 0);
    }

    #[test]
    fn table_with_wrong_elements_fails() {
        let (text, wrong) = table("broadcast --ranks 4 -b 8 -e 4000 -r 3", Some(3));
        assert!(text.contains(
            "float    none       3     1.00    4.00    4.00       3      N/A     N/A     N/A     N/A\n"
        ));
        assert!(text.contains("# Out of bounds values : 3 FAILED\n"));
        assert_eq!(wrong, 3);
    }

    #[test]
    fn table_of_unchecked_results_shows_na() {
        let (text, wrong) = table("all_gather --ranks 4 -c 0", None);
        assert!(text.contains("        3968           248     "));
        assert!(text.contains("     N/A\n# Out of bounds values : N/A\n"));
        assert_eq!(wrong, 0);
    }
}
