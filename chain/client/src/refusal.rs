//! Errors of pallets that a program acts on, as an enum.

macro_rules! refusals {
    ($($(#[$doc:meta])* $pallet:ident.$error:ident;)*) => {
        /// An error of a pallet that a program acts on. All others are only reported to the user.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Refusal {
            $($(#[$doc])* $error),*
        }

        impl Refusal {
            pub const ALL: &[Refusal] = &[$(Refusal::$error),*];

            /// Returns the names of the pallet and of its error, as in the chain's metadata.
            pub fn names(self) -> (&'static str, &'static str) {
                match self {
                    $(Refusal::$error => (stringify!($pallet), stringify!($error))),*
                }
            }
        }
    };
}

refusals! {
    /// The hotkey has, or had, a seat in the run.
    Registry.HotkeyInUse;
    /// The validator has attested the window.
    Windows.AlreadyAttested;
    /// The validator has voted on the window.
    Windows.AlreadyVoted;
    /// The validator has anchored a receipt for the window.
    Windows.AlreadyAnchored;
    /// The chain has pruned the window.
    Windows.WindowNotKept;
    /// The seat was registered after the window's data was dealt, or the run is stopped.
    Windows.NotInThisWindow;
    /// The hotkey has no seat in the run.
    Windows.NotASeat;
    /// The seat is a miner's.
    Windows.NotAValidator;
    /// The validator has committed to weights for the epoch.
    Weights.AlreadyCommitted;
    /// The validator has revealed its weights for the epoch.
    Weights.AlreadyRevealed;
    /// The validator has shown its measurements of the epoch.
    Weights.AlreadyAnswered;
    /// The contributions of the epoch are not drawn yet, or none was merged.
    Weights.NothingDrawn;
    /// The validator anchored nothing for a drawn window before the draw.
    Weights.NotAnchored;
    /// A measurement differs from the one that the validator anchored.
    Weights.OtherThanAnchored;
    /// The epoch has closed.
    Weights.RevealOver;
    /// The epoch's reveal period has not begun.
    Weights.RevealNotBegun;
}

impl Refusal {
    /// Returns the refusal with these names, if it is one that a program acts on.
    pub fn named(pallet: &str, error: &str) -> Option<Refusal> {
        Refusal::ALL.iter().copied().find(|refusal| refusal.names() == (pallet, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use subxt::Metadata;

    #[tokio::test(flavor = "multi_thread")]
    async fn every_refusal_is_an_error_of_its_pallet() {
        let bytes = crate::call::tests::metadata_of_a_chain().await;
        let metadata = Metadata::decode_from(&bytes).unwrap();
        for refusal in Refusal::ALL {
            let (pallet, error) = refusal.names();
            let errors = metadata.pallet_by_name(pallet).unwrap().error_variants().unwrap();
            assert!(errors.iter().any(|variant| variant.name == error), "{pallet}.{error}");
            assert_eq!(Refusal::named(pallet, error), Some(*refusal));
        }
        assert_eq!(Refusal::named("Weights", "HotkeyInUse"), None);
    }
}
