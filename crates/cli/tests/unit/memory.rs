use libnccl::{DataType, ReduceOp};

use super::{BLOCK, Buffer, Memory};
use crate::bench::data::Arithmetic;
use crate::bench::data::{Comparison, Data, FirstWrong, Reduction};

fn buffer(data_type: DataType, length: usize) -> anyhow::Result<Buffer> {
    Memory::Host.buffer(&libnccl_cpu::nccl(), data_type, length)
}

#[test]
fn ranges_of_several_blocks_are_filled_and_compared() {
    let arithmetic = Arithmetic::new(DataType::Uint8).unwrap();
    let pattern = Data { arithmetic, op: Reduction::Op(ReduceOp::Sum), ranks: 2, seed: 3 }.sent(1);
    let mut buffer = buffer(DataType::Uint8, 2 * BLOCK + 5).unwrap();
    buffer.fill(1..2 * BLOCK + 5, &pattern).unwrap();
    let compare = |buffer: &Buffer| buffer.compare(1..2 * BLOCK + 5, &pattern).unwrap();
    assert_eq!(compare(&buffer), Comparison::default());
    let expected = buffer.read(2 * BLOCK..2 * BLOCK + 1).unwrap()[0].to_string();
    buffer.write(2 * BLOCK, &[255; 5]).unwrap();
    let first = FirstWrong { offset: 2 * BLOCK - 1, got: "255".into(), expected };
    assert_eq!(compare(&buffer), Comparison { wrong: 5, first: Some(first) });
    assert_eq!(buffer.read(2 * BLOCK..2 * BLOCK + 5).unwrap(), [255; 5].as_slice());
    assert_eq!(buffer.compare(7..7, &pattern).unwrap(), Comparison::default());
}

#[test]
fn ranges_beyond_the_end_are_errors() {
    let [mut one, other] = [4, 8].map(|length| buffer(DataType::Float32, length).unwrap());
    assert!(one.write(3, &[0; 8]).is_err());
    assert!(one.read(3..5).is_err());
    assert!(one.enqueue_copy(3, &other, 0..2).is_err() && one.enqueue_copy(0, &other, 7..9).is_err());
    assert!(one.part(3..5).is_err() && one.part_mut(3..5).is_err() && one.parts(0..1, 3..5).is_err());
    assert_eq!(one.part_mut(1..3).unwrap().len(), 2);
    assert!(one.parts(0..2, 1..3).is_err(), "they overlap");
    assert!(buffer(DataType::Float64, usize::MAX).is_err());
    assert!(buffer(DataType::Int8, usize::MAX).is_err());
}
