//! The subset of Python's pickle protocol 2 that PyTorch's flight recorder writes: dictionaries, lists, tuples, strings, numbers,
//! booleans and `None`. Classes and functions, which Python would call, are refused.

use std::collections::HashMap;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value};

/// The maximum size of a pickle's values in bytes. A short pickle can describe large values, because it may use a value
/// repeatedly.
const MAX_SIZE: usize = 1 << 29;

/// The maximum nesting of values. A list in a pickle may contain itself.
const MAX_DEPTH: usize = 32;

/// Returns whether the first byte begins a pickle of protocol 2 or newer.
pub(super) fn is_pickle(bytes: &[u8]) -> bool {
    bytes.first() == Some(&0x80)
}

/// Returns the value of a pickle. Tuples become arrays.
pub(super) fn read(pickle: &[u8]) -> Result<Value> {
    let mut reader =
        Reader { rest: pickle, values: vec![], stack: vec![], marks: vec![], memo: HashMap::new() };
    loop {
        let offset = pickle.len() - reader.rest.len();
        match reader.step() {
            Ok(None) => {}
            Ok(Some(root)) => return reader.value(root, 0, &mut 0),
            Err(error) => return Err(error.context(format!("byte {offset} of the pickle"))),
        }
    }
}

/// A value, which refers to contained values by index.
enum Node {
    Scalar(Value),
    List(Vec<usize>),
    /// Alternating keys and values.
    Dictionary(Vec<usize>),
}

struct Reader<'a> {
    rest: &'a [u8],
    values: Vec<Node>,
    stack: Vec<usize>,
    /// The stack heights at the marks.
    marks: Vec<usize>,
    memo: HashMap<usize, usize>,
}

impl<'a> Reader<'a> {
    /// Executes one instruction. At the end of the pickle, returns the index of its value.
    fn step(&mut self) -> Result<Option<usize>> {
        match self.byte()? {
            0x80 => {
                let protocol = self.byte()?;
                ensure!(protocol == 2, "protocol {protocol}: expected 2, in which PyTorch writes");
            }
            b'N' => self.push(Node::Scalar(Value::Null)),
            0x88 => self.push(Node::Scalar(true.into())),
            0x89 => self.push(Node::Scalar(false.into())),
            b'K' => self.push_integer(1, false)?,
            b'M' => self.push_integer(2, false)?,
            b'J' => self.push_integer(4, true)?,
            0x8a => {
                let length = self.byte()?;
                self.push_integer(length.into(), true)?;
            }
            b'G' => {
                let number = f64::from_be_bytes(self.take(8)?.try_into()?);
                self.push(Node::Scalar(number.into()));
            }
            b'X' => {
                let length = self.length()?;
                let text = String::from_utf8(self.take(length)?.to_vec())?;
                self.push(Node::Scalar(text.into()));
            }
            b'}' => self.push(Node::Dictionary(vec![])),
            b']' | b')' => self.push(Node::List(vec![])),
            b'(' => self.marks.push(self.stack.len()),
            b't' => self.pop_to_mark().map(|items| self.push(Node::List(items)))?,
            count @ 0x85..=0x87 => self.pop(count - 0x84).map(|items| self.push(Node::List(items)))?,
            b'a' => self.pop(1).and_then(|items| self.extend(&items))?,
            b's' => self.pop(2).and_then(|items| self.extend(&items))?,
            b'e' | b'u' => self.pop_to_mark().and_then(|items| self.extend(&items))?,
            memoize @ (b'q' | b'r') => {
                let key = self.key(memoize == b'q')?;
                self.memo.insert(key, self.top()?);
            }
            get @ (b'h' | b'j') => {
                let key = self.key(get == b'h')?;
                let known = self.memo.get(&key);
                self.stack.push(*known.with_context(|| format!("it uses value {key} before it has it"))?);
            }
            b'.' => return self.top().map(Some),
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                bail!("it names {module}.{name}, a class or function of Python: expected data alone");
            }
            other => bail!("instruction {other:#04x}: expected those of data, as PyTorch writes it"),
        }
        Ok(None)
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count).context("it ends here: the file is cut off")?;
        self.rest = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn length(&mut self) -> Result<usize> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into()?) as usize)
    }

    fn key(&mut self, is_short: bool) -> Result<usize> {
        if is_short { Ok(self.byte()?.into()) } else { self.length() }
    }

    fn line(&mut self) -> Result<String> {
        let length = self.rest.iter().position(|byte| *byte == b'\n').context("a line without an end")?;
        let line = self.take(length + 1)?;
        Ok(String::from_utf8_lossy(&line[..length]).into_owned())
    }

    fn push(&mut self, node: Node) {
        self.stack.push(self.values.len());
        self.values.push(node);
    }

    /// Pushes a little-endian integer of this many bytes.
    fn push_integer(&mut self, length: usize, is_signed: bool) -> Result<()> {
        let bytes = self.take(length)?;
        // Python adds a zero byte if the highest bit would be taken for the sign.
        ensure!(length <= 9, "an integer of {length} bytes: expected one of 64 bits");
        let is_negative = is_signed && bytes.last().is_some_and(|last| *last >= 0x80);
        let mut all = [if is_negative { 0xff } else { 0 }; 16];
        all[..length].copy_from_slice(bytes);
        let number = i128::from_le_bytes(all);
        let value = match (i64::try_from(number), u64::try_from(number)) {
            (Ok(number), _) => Value::from(number),
            (_, Ok(number)) => Value::from(number),
            _ => bail!("the integer {number}: expected one of 64 bits"),
        };
        self.push(Node::Scalar(value));
        Ok(())
    }

    fn top(&self) -> Result<usize> {
        self.stack.last().copied().context("it uses a value that it does not have")
    }

    fn pop(&mut self, count: u8) -> Result<Vec<usize>> {
        let bottom = self.marks.last().copied().unwrap_or(0);
        let start = self.stack.len().checked_sub(count.into()).filter(|start| *start >= bottom);
        Ok(self.stack.split_off(start.context("it uses a value that it does not have")?))
    }

    fn pop_to_mark(&mut self) -> Result<Vec<usize>> {
        let mark = self.marks.pop().filter(|mark| *mark <= self.stack.len());
        Ok(self.stack.split_off(mark.context("it ends a sequence that it has not begun")?))
    }

    /// Adds to the list or dictionary at the top of the stack.
    fn extend(&mut self, items: &[usize]) -> Result<()> {
        let top = self.top()?;
        match &mut self.values[top] {
            Node::List(all) => all.extend(items),
            Node::Dictionary(all) if items.len().is_multiple_of(2) => all.extend(items),
            _ => bail!("it adds to what is no list and no dictionary, or a key without a value"),
        }
        Ok(())
    }

    /// Returns a value with its contents, and adds its size in bytes to `size`.
    fn value(&self, index: usize, depth: usize, size: &mut usize) -> Result<Value> {
        ensure!(depth <= MAX_DEPTH, "values in {depth} others: expected {MAX_DEPTH} at most");
        let text = if let Node::Scalar(Value::String(text)) = &self.values[index] { text } else { "" };
        *size += size_of::<Value>() + text.len();
        ensure!(*size <= MAX_SIZE, "its values take more than {MAX_SIZE} bytes, as it uses some many times");
        match &self.values[index] {
            Node::Scalar(value) => Ok(value.clone()),
            Node::List(items) => items.iter().map(|item| self.value(*item, depth + 1, size)).collect(),
            Node::Dictionary(items) => {
                let mut entries = Map::new();
                for pair in items.chunks_exact(2) {
                    let key = match self.value(pair[0], depth + 1, size)? {
                        Value::String(key) => key,
                        Value::Number(key) => key.to_string(),
                        other => bail!("the key {other} of a dictionary: expected a string or a number"),
                    };
                    entries.insert(key, self.value(pair[1], depth + 1, size)?);
                }
                Ok(Value::Object(entries))
            }
        }
    }
}
