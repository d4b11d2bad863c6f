//! A program without Tokio, which waits.

use testprogs::script;

fn main() {
    script::say_ready();
    script::expect("exit");
}
