//! Vector clocks: how far each stream has come, as seen from somewhere.

#[cfg(test)]
thread_local! {
    /// The number of steps that clocks of this thread were compared with.
    pub(crate) static COMPARISONS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// A stream's index in clocks. It is reused once the host has waited for the end of a destroyed stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Component(pub(crate) usize);

/// An operation of a stream, or the part of it that peers may observe before it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) component: Component,
    /// From 1.
    pub(crate) number: u64,
}

/// For each component, the number of preceding steps.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Clock(Vec<u64>);

impl Clock {
    fn get(&self, component: Component) -> u64 {
        self.0.get(component.0).copied().unwrap_or(0)
    }

    #[cfg(test)]
    pub(crate) fn components(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn includes(&self, step: Step) -> bool {
        #[cfg(test)]
        COMPARISONS.set(COMPARISONS.get() + 1);
        self.get(step.component) >= step.number
    }

    pub(crate) fn includes_all(&self, other: &Self) -> bool {
        other.0.iter().enumerate().all(|(index, &number)| self.get(Component(index)) >= number)
    }

    pub(crate) fn advance(&mut self, Step { component: Component(index), number }: Step) {
        if self.0.len() <= index {
            self.0.resize(index + 1, 0);
        }
        self.0[index] = self.0[index].max(number);
    }

    pub(crate) fn join(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (own, &number) in self.0.iter_mut().zip(&other.0) {
            *own = (*own).max(number);
        }
    }
}
