//! Enums whose variants have a word each. The macro makes the code that follows from the list.

/// Defines an enum by its variants and their words. It has `ALL`, every variant in this order, and
/// `as_str`, a variant's word.
#[macro_export]
macro_rules! worded {
    (
        $(#[$about_all:meta])*
        $visibility:vis enum $name:ident {
            $($(#[$about:meta])* $variant:ident = $word:literal,)+
        }
    ) => {
        $(#[$about_all])*
        $visibility enum $name {
            $($(#[$about])* $variant,)+
        }

        impl $name {
            /// Every variant.
            $visibility const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// The word for it, on every interface.
            $visibility const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }
    };
}
