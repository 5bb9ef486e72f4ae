//! Tensor parallelism with the all-reduce as a custom operation of a library of tensors, in the shape of candle's and
//! mistral.rs's: the operation has to be `Sync`, and a rank is created from a stream, its number, the ranks and an id.
//!
//! The argument is `before` or `after`. Prints the output of the model on each rank.

#![deny(unsafe_code)]

mod after;
mod before;
mod op;

use std::sync::Arc;
use std::thread;

use cudarc::driver::{CudaContext, CudaStream};

use op::{Id, Op, Result, Storage};

/// The two forms of the operation.
struct Form {
    id: fn() -> Result<Id>,
    all_reduce: fn(Arc<CudaStream>, usize, usize, Id) -> Result<Op>,
}

const WORLD_SIZE: usize = 4;

/// The numbers of inputs and outputs of a layer.
const WIDTH: usize = 8;

fn main() -> Result {
    let form = match std::env::args().nth(1).as_deref() {
        Some("before") => Form { id: before::id, all_reduce: before::AllReduce::new_op },
        Some("after") => Form { id: after::id, all_reduce: after::AllReduce::new_op },
        other => return Err(format!("the form is {other:?}; expected before or after").into()),
    };
    // CUDA before NCCL.
    CudaContext::new(0)?;
    let (id, form) = ((form.id)()?, &form);
    let outputs = thread::scope(|scope| {
        let ranks: Vec<_> = (0..WORLD_SIZE).map(|rank| scope.spawn(move || run(form, rank, id))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect::<Result<Vec<_>>>()
    })?;
    for (rank, (_, singles, doubles)) in outputs.iter().enumerate() {
        println!("rank {rank}, f32: {singles:?}, f64: {doubles:?}");
    }
    Ok(())
}

/// The operation, which ends when all ranks are done, and the outputs in single precision and in double.
type Output = (Op, Vec<f32>, Vec<f64>);

/// Runs the model on a rank.
fn run(form: &Form, rank: usize, id: Id) -> Result<Output> {
    let stream = CudaContext::new(rank)?.new_stream()?;
    let op = (form.all_reduce)(stream.clone(), rank, WORLD_SIZE, id)?;
    let layers =
        [0, 1].map(|number| RowParallelLinear { number, rank, stream: stream.clone(), op: op.clone() });
    let mut hidden = vec![1.0; WIDTH];
    let mut doubles = Vec::new();
    for layer in &layers {
        // The threads of an engine take turns.
        (hidden, doubles) =
            thread::scope(|scope| scope.spawn(|| layer.forward(&hidden)).join().expect("no thread panics"))?;
    }
    Ok((op, hidden.iter().map(|value| *value as f32).collect(), doubles))
}

/// A linear layer of which each rank has some of the inputs, so that the ranks' outputs have to be added.
struct RowParallelLinear {
    number: usize,
    rank: usize,
    stream: Arc<CudaStream>,
    op: Op,
}

impl RowParallelLinear {
    /// Returns the outputs, computed in single precision and in double.
    fn forward(&self, inputs: &[f64]) -> Result<(Vec<f64>, Vec<f64>)> {
        let part = WIDTH / WORLD_SIZE;
        let own = self.rank * part..(self.rank + 1) * part;
        let weight = |row: usize, column: usize| ((row * 3 + column + self.number) % 5) as f64 - 2.0;
        let output = |row| own.clone().map(|column| weight(row, column) * inputs[column]).sum();
        let partial: Vec<f64> = (0..WIDTH).map(output).collect();
        let singles: Vec<f32> = partial.iter().map(|value| *value as f32).collect();
        let singles = self.sum(Storage::F32(self.stream.clone_htod(&singles)?))?;
        let doubles = self.sum(Storage::F64(self.stream.clone_htod(&partial)?))?;
        Ok((singles, doubles))
    }

    fn sum(&self, partial: Storage) -> Result<Vec<f64>> {
        let sum = self.op.forward(&partial).map_err(|error| format!("{}: {error}", self.op.name()))?;
        Ok(match sum {
            Storage::F32(sum) => self.stream.clone_dtoh(&sum)?.into_iter().map(f64::from).collect(),
            Storage::F64(sum) => self.stream.clone_dtoh(&sum)?,
        })
    }
}
