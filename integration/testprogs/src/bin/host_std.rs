//! A program without Tokio, which loads libraries that have one.

use testprogs::host;

fn main() {
    host::serve(None);
}
