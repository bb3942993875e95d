//! Sender of one kind of message into the inbox of a task that takes many kinds.
//!
//! A service that answers tasks is given a [`Mailbox`] of its own message type and so knows nothing of theirs.
//! Invariant: messages arrive in the order in which they were sent.

use std::any::Any;
use std::fmt::{self, Debug, Formatter};
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Sender of `T`, wrapped on the way into the message type of the receiving task.
pub struct Mailbox<T>(Arc<dyn Deliver<T>>);

type Delivery<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

trait Deliver<T>: Send + Sync {
    fn deliver(&self, item: T) -> Delivery<'_>;
    fn try_deliver(&self, item: T);
    /// The inbox: a sender of the receiving task's message type.
    fn inbox(&self) -> &dyn Any;
    fn is_inbox(&self, other: &dyn Any) -> bool;
}

struct Wrapped<M, F> {
    inbox: mpsc::Sender<M>,
    wrap: F,
}

impl<T, M, F> Deliver<T> for Wrapped<M, F>
where
    M: Send + 'static,
    F: Fn(T) -> M + Send + Sync,
{
    fn deliver(&self, item: T) -> Delivery<'_> {
        let message = (self.wrap)(item);
        Box::pin(async move {
            let _ = self.inbox.send(message).await; // a task that has ended needs no message
        })
    }

    fn try_deliver(&self, item: T) {
        let _ = self.inbox.try_send((self.wrap)(item));
    }

    fn inbox(&self) -> &dyn Any {
        &self.inbox
    }

    fn is_inbox(&self, other: &dyn Any) -> bool {
        other.downcast_ref::<mpsc::Sender<M>>().is_some_and(|other| other.same_channel(&self.inbox))
    }
}

impl<T> Mailbox<T> {
    /// Mailbox in front of `inbox`; `wrap` makes the inbox's message of an item.
    pub fn new<M: Send + 'static>(inbox: mpsc::Sender<M>, wrap: impl Fn(T) -> M + Send + Sync + 'static) -> Self
    where
        T: 'static,
    {
        Self(Arc::new(Wrapped { inbox, wrap }))
    }

    /// Sends one item, waiting for room in the inbox. Dropped if the task has ended.
    pub async fn send(&self, item: T) {
        self.0.deliver(item).await;
    }

    /// Sends one item that may be lost: dropped if the inbox is full or the task has ended.
    pub fn try_send(&self, item: T) {
        self.0.try_deliver(item);
    }

    /// Tests that both lead into the inbox of the same task.
    #[must_use]
    pub fn same_inbox(&self, other: &Self) -> bool {
        self.0.is_inbox(other.0.inbox())
    }
}

impl<T> Clone for Mailbox<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Debug for Mailbox<T> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        out.write_str("Mailbox")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    enum Message {
        Number(u32),
        Word(&'static str),
    }

    #[tokio::test]
    async fn messages_of_all_mailboxes_arrive_in_the_order_they_were_sent() {
        let (sender, mut inbox) = mpsc::channel(8);
        let (numbers, words) = (Mailbox::new(sender.clone(), Message::Number), Mailbox::new(sender, Message::Word));
        numbers.send(1).await;
        words.send("two").await;
        numbers.clone().send(3).await;
        drop((numbers, words));
        let mut received = Vec::new();
        while let Some(message) = inbox.recv().await {
            received.push(message);
        }
        assert_eq!(received, [Message::Number(1), Message::Word("two"), Message::Number(3)]);
    }

    #[tokio::test]
    async fn mailboxes_of_one_inbox_are_recognised() {
        let ((one, _one), (other, _other)) = (mpsc::channel(1), mpsc::channel(1));
        let (numbers, again) = (Mailbox::new(one.clone(), Message::Number), Mailbox::new(one, Message::Number));
        assert!(numbers.same_inbox(&again) && numbers.same_inbox(&numbers.clone()));
        assert!(!numbers.same_inbox(&Mailbox::new(other, Message::Number)));
        let (texts, _texts) = mpsc::channel(1);
        assert!(!numbers.same_inbox(&Mailbox::new(texts, |number: u32| number.to_string())), "another message type");
    }

    #[tokio::test]
    async fn a_message_that_may_be_lost_does_not_wait_for_room() {
        let (sender, mut inbox) = mpsc::channel(1);
        let numbers = Mailbox::new(sender, Message::Number);
        numbers.try_send(1);
        numbers.try_send(2);
        assert_eq!(inbox.recv().await, Some(Message::Number(1)));
        assert!(inbox.is_empty());
    }

    #[tokio::test]
    async fn a_message_to_a_task_that_has_ended_is_dropped() {
        let (sender, inbox) = mpsc::channel(1);
        drop(inbox);
        Mailbox::new(sender, Message::Number).send(1).await;
    }
}
