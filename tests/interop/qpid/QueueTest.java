package penstock.interop;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNotNull;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import jakarta.jms.CompletionListener;
import jakarta.jms.InvalidSelectorRuntimeException;
import jakarta.jms.JMSConsumer;
import jakarta.jms.JMSContext;
import jakarta.jms.JMSProducer;
import jakarta.jms.JMSRuntimeException;
import jakarta.jms.Message;
import jakarta.jms.QueueBrowser;
import jakarta.jms.TemporaryQueue;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Enumeration;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.Test;

/** Queues: competing consumers, acknowledgement, transactions, browsers, temporary queues. */
public final class QueueTest extends RealmTest {
  private void send(JMSContext context, int count) {
    JMSProducer producer = context.createProducer();
    for (int number = 0; number < count; number++) {
      producer.setProperty("number", number).send(queue(), "m" + number);
    }
  }

  @Test
  public void inOrderAndOnce() throws Exception {
    JMSContext context = open();
    send(context, 2_000);
    JMSConsumer consumer = context.createConsumer(queue());

    for (int number = 0; number < 2_000; number++) {
      assertEquals("m" + number, consumer.receiveBody(String.class, LONG));
    }
    assertNull(consumer.receive(SHORT));
  }

  @Test
  public void competingConsumersShareTheWork() throws Exception {
    Set<String> found = Collections.synchronizedSet(new HashSet<>());
    CountDownLatch left = new CountDownLatch(400);
    int[] counts = new int[2];
    for (int at = 0; at < 2; at++) {
      int me = at;
      open().createConsumer(queue()).setMessageListener(
          message -> {
            try {
              assertTrue("once", found.add(text(message)));
            } catch (Exception error) {
              throw new IllegalStateException(error);
            }
            counts[me]++;
            left.countDown();
          });
    }
    send(open(), 400);

    assertTrue(left.await(LONG, TimeUnit.MILLISECONDS));
    assertEquals(400, found.size());
    assertTrue(counts[0] + " and " + counts[1], counts[0] > 0 && counts[1] > 0);
  }

  @Test
  public void whatIsNotAcknowledgedComesAgain() throws Exception {
    send(open(), 3);
    JMSContext first = open(JMSContext.CLIENT_ACKNOWLEDGE);
    JMSConsumer consumer = first.createConsumer(queue());
    consumer.receive(LONG).acknowledge();
    consumer.receive(LONG);
    first.close();

    JMSConsumer successor = open().createConsumer(queue());
    Message again = successor.receive(LONG);

    assertEquals("m1", text(again));
    assertTrue(again.getJMSRedelivered());
    // The closing client gives it back before it takes back its credit: it may come once more.
    assertTrue(again.getIntProperty("JMSXDeliveryCount") >= 2);
    assertEquals("m2", successor.receiveBody(String.class, LONG));
    assertNull(successor.receive(SHORT));
  }

  @Test
  public void whatOneClientCannotProcessIsForOthers() throws Exception {
    send(open(), 2);
    JMSContext first = open(JMSContext.CLIENT_ACKNOWLEDGE);
    assertEquals("m0", first.createConsumer(queue()).receiveBody(String.class, LONG));
    first.close();
    JMSConsumer picky = openPicky().createConsumer(queue());
    picky.receive(SHORT); // modified with undeliverable-here: the outcome Qpid JMS has for poison

    JMSConsumer other = open().createConsumer(queue());

    Message poison = other.receive(LONG);
    assertEquals("m0", text(poison));
    assertTrue(poison.getJMSRedelivered());
  }

  @Test
  public void recoveryDeliversAgainInOrder() throws Exception {
    send(open(), 3);
    JMSContext context = open(JMSContext.CLIENT_ACKNOWLEDGE);
    JMSConsumer consumer = context.createConsumer(queue());
    assertEquals("m0", consumer.receiveBody(String.class, LONG));
    assertEquals("m1", consumer.receiveBody(String.class, LONG));

    context.recover();

    Message again = consumer.receive(LONG);
    assertEquals("m0", text(again));
    assertTrue(again.getJMSRedelivered());
    assertEquals("m1", consumer.receiveBody(String.class, LONG));
    assertEquals("m2", consumer.receiveBody(String.class, LONG));
  }

  @Test
  public void aCommitShowsEverythingAtOnce() throws Exception {
    JMSContext transacted = open(JMSContext.SESSION_TRANSACTED);
    JMSConsumer consumer = open().createConsumer(queue());
    send(transacted, 3);
    assertNull(consumer.receive(SHORT));

    transacted.commit();

    for (int number = 0; number < 3; number++) {
      assertEquals("m" + number, consumer.receiveBody(String.class, LONG));
    }
  }

  @Test
  public void aRollbackSendsNothingAndAcknowledgesNothing() throws Exception {
    send(open(), 2);
    JMSContext transacted = open(JMSContext.SESSION_TRANSACTED);
    JMSConsumer consumer = transacted.createConsumer(queue());
    assertEquals("m0", consumer.receiveBody(String.class, LONG));
    transacted.createProducer().send(queue(), "never");

    transacted.rollback();

    Message again = consumer.receive(LONG);
    assertEquals("m0", text(again));
    assertEquals(2, again.getIntProperty("JMSXDeliveryCount"));
    assertEquals("m1", consumer.receiveBody(String.class, LONG));
    transacted.commit();
    assertNull(consumer.receive(SHORT));
  }

  @Test
  public void aTransactionMovesBetweenQueues() throws Exception {
    send(open(), 10);
    JMSContext transacted = open(JMSContext.SESSION_TRANSACTED);
    JMSConsumer consumer = transacted.createConsumer(queue());
    for (int number = 0; number < 10; number++) {
      Message message = consumer.receive(LONG);
      transacted.createProducer().send(transacted.createQueue(name() + "_moved"), message);
    }
    transacted.commit();
    transacted.close();

    JMSContext after = open();
    JMSConsumer moved = after.createConsumer(after.createQueue(name() + "_moved"));

    for (int number = 0; number < 10; number++) {
      assertEquals("m" + number, moved.receiveBody(String.class, LONG));
    }
    assertNull(after.createConsumer(queue()).receive(SHORT));
  }

  @Test
  public void aBrowserLooksAndTakesNothing() throws Exception {
    JMSContext context = open();
    send(context, 5);

    assertEquals(List.of("m0", "m1", "m2", "m3", "m4"), browsed(context, null));
    assertEquals(List.of("m3", "m4"), browsed(context, "number > 2"));

    JMSConsumer consumer = context.createConsumer(queue());
    for (int number = 0; number < 5; number++) {
      assertEquals("m" + number, consumer.receiveBody(String.class, LONG));
    }
    assertEquals(List.of(), browsed(context, null));
  }

  private List<String> browsed(JMSContext context, String selector) throws Exception {
    List<String> found = new ArrayList<>();
    try (QueueBrowser browser = context.createBrowser(queue(), selector)) {
      for (Enumeration<?> each = browser.getEnumeration(); each.hasMoreElements(); ) {
        found.add(text((Message) each.nextElement()));
      }
    }
    return found;
  }

  @Test
  public void selectorsLeaveWhatTheyDoNotWant() throws Exception {
    JMSContext context = open();
    send(context, 6);
    JMSConsumer odd = context.createConsumer(queue(), "number BETWEEN 1 AND 3 AND number <> 2");

    assertEquals("m1", odd.receiveBody(String.class, LONG));
    assertEquals("m3", odd.receiveBody(String.class, LONG));
    assertNull(odd.receive(SHORT));
    odd.close();
    JMSConsumer rest = context.createConsumer(queue());
    for (int number : new int[] {0, 2, 4, 5}) {
      assertEquals("m" + number, rest.receiveBody(String.class, LONG));
    }
  }

  @Test
  public void aSelectorThatIsNoneIsRefused() {
    JMSContext context = open();

    assertThrows(
        InvalidSelectorRuntimeException.class,
        () -> context.createConsumer(queue(), "number = = 2"));
  }

  @Test
  public void requestsAreAnsweredInATemporaryQueue() throws Exception {
    JMSContext server = open();
    server
        .createConsumer(queue())
        .setMessageListener(
            request -> {
              try {
                server
                    .createProducer()
                    .setJMSCorrelationID(request.getJMSMessageID())
                    .send(request.getJMSReplyTo(), "re: " + text(request));
              } catch (Exception error) {
                throw new IllegalStateException(error);
              }
            });
    JMSContext client = open();
    TemporaryQueue answers = client.createTemporaryQueue();
    Message request = client.createTextMessage("question");
    request.setJMSReplyTo(answers);
    client.createProducer().send(queue(), request);

    Message answer = client.createConsumer(answers).receive(LONG);

    assertEquals("re: question", text(answer));
    assertEquals(request.getJMSMessageID(), answer.getJMSCorrelationID());
  }

  @Test
  public void aTemporaryQueueEndsWithItsConnection() {
    JMSContext owner = open();
    TemporaryQueue queue = owner.createTemporaryQueue();
    JMSContext other = open();
    other.createProducer().send(queue, "while it is there");
    owner.close();

    assertThrows(
        JMSRuntimeException.class, () -> other.createProducer().send(queue, "late"));
  }

  @Test
  public void asynchronousSendsAreConfirmed() throws Exception {
    JMSContext context = open();
    CountDownLatch left = new CountDownLatch(500);
    AtomicReference<Exception> failed = new AtomicReference<>();
    JMSProducer producer =
        context
            .createProducer()
            .setAsync(
                new CompletionListener() {
                  @Override
                  public void onCompletion(Message message) {
                    left.countDown();
                  }

                  @Override
                  public void onException(Message message, Exception exception) {
                    failed.set(exception);
                  }
                });
    for (int number = 0; number < 500; number++) {
      producer.send(queue(), "m" + number);
    }

    assertTrue(left.await(LONG, TimeUnit.MILLISECONDS));
    assertNull(failed.get());
    JMSConsumer consumer = context.createConsumer(queue());
    for (int number = 0; number < 500; number++) {
      assertEquals("m" + number, consumer.receiveBody(String.class, LONG));
    }
  }

  @Test
  public void aConsumerThatHasStoppedIsGivenNothing() throws Exception {
    JMSContext context = open();
    JMSConsumer consumer = context.createConsumer(queue());
    send(open(), 1);
    assertNotNull(consumer.receive(LONG));
    context.stop();
    send(open(), 1);
    assertNull(consumer.receiveNoWait());

    context.start();

    assertEquals("m0", consumer.receiveBody(String.class, LONG));
  }

  @Test
  public void messagesWaitWhileNobodyIsThere() throws Exception {
    JMSContext context = open();
    send(context, 1);
    context.close();

    Message message = open().createConsumer(queue()).receive(LONG);

    assertEquals("m0", text(message));
    assertFalse(message.getJMSRedelivered());
  }
}
