package penstock.interop;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNotNull;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertTrue;

import jakarta.jms.BytesMessage;
import jakarta.jms.DeliveryMode;
import jakarta.jms.JMSConsumer;
import jakarta.jms.JMSContext;
import jakarta.jms.MapMessage;
import jakarta.jms.Message;
import jakarta.jms.ObjectMessage;
import jakarta.jms.StreamMessage;
import jakarta.jms.TextMessage;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import org.junit.Test;

/** Messages come out as they went in: bodies, properties, headers. */
public final class MessageTest extends RealmTest {
  private Message through(JMSContext context, Message message) {
    context.createProducer().send(queue(), message);
    try (JMSConsumer consumer = context.createConsumer(queue())) {
      Message found = consumer.receive(LONG);
      assertNotNull("it has to come", found);
      assertEquals(message.getClass(), found.getClass());
      return found;
    }
  }

  @Test
  public void textOfAnyScript() throws Exception {
    JMSContext context = open();
    String text = "Grüße, 你好, \uD83D\uDE00\u0000 end";

    assertEquals(text, text(through(context, context.createTextMessage(text))));
  }

  @Test
  public void textThatIsEmptyAndTextThatIsNot() throws Exception {
    JMSContext context = open();

    assertEquals("", ((TextMessage) through(context, context.createTextMessage(""))).getText());
    assertNull(((TextMessage) through(context, context.createTextMessage())).getText());
  }

  @Test
  public void bytes() throws Exception {
    JMSContext context = open();
    byte[] body = new byte[1_000];
    new Random(1).nextBytes(body);
    BytesMessage message = context.createBytesMessage();
    message.writeBytes(body);

    assertArrayEquals(body, through(context, message).getBody(byte[].class));
  }

  @Test
  public void severalMebibytes() throws Exception {
    JMSContext context = open();
    byte[] body = new byte[5 << 20];
    new Random(2).nextBytes(body);
    BytesMessage message = context.createBytesMessage();
    message.writeBytes(body);

    assertArrayEquals(body, through(context, message).getBody(byte[].class));
  }

  @Test
  public void mapWithEveryType() throws Exception {
    JMSContext context = open();
    MapMessage message = context.createMapMessage();
    message.setBoolean("boolean", true);
    message.setByte("byte", (byte) -8);
    message.setShort("short", (short) -300);
    message.setInt("int", 70_000);
    message.setLong("long", 1L << 40);
    message.setFloat("float", 1.5f);
    message.setDouble("double", 0.1);
    message.setChar("char", 'ß');
    message.setString("string", "text");
    message.setBytes("bytes", new byte[] {1, 2});

    MapMessage found = (MapMessage) through(context, message);

    assertTrue(found.getBoolean("boolean"));
    assertEquals((byte) -8, found.getObject("byte"));
    assertEquals((short) -300, found.getObject("short"));
    assertEquals(70_000, found.getObject("int"));
    assertEquals(1L << 40, found.getObject("long"));
    assertEquals(1.5f, found.getObject("float"));
    assertEquals(0.1, found.getObject("double"));
    assertEquals('ß', found.getChar("char"));
    assertEquals("text", found.getString("string"));
    assertArrayEquals(new byte[] {1, 2}, found.getBytes("bytes"));
    assertTrue(found.itemExists("bytes") && !found.itemExists("other"));
  }

  @Test
  public void stream() throws Exception {
    JMSContext context = open();
    StreamMessage message = context.createStreamMessage();
    message.writeInt(1);
    message.writeString("two");
    message.writeDouble(3.0);

    StreamMessage found = (StreamMessage) through(context, message);

    assertEquals(1, found.readInt());
    assertEquals("two", found.readString());
    assertEquals(3.0, found.readDouble(), 0);
  }

  @Test
  public void object() throws Exception {
    JMSContext context = open();
    ObjectMessage message = context.createObjectMessage((java.io.Serializable) List.of(1, 2, 3));

    ObjectMessage found = (ObjectMessage) through(context, message);

    assertEquals(List.of(1, 2, 3), found.getObject());
  }

  @Test
  public void propertiesKeepTheirTypes() throws Exception {
    JMSContext context = open();
    Message message = context.createMessage();
    List<Object> values =
        Arrays.asList(true, (byte) 1, (short) 2, 3, 4L, 5.5f, 6.25, "seven");
    for (int at = 0; at < values.size(); at++) {
      message.setObjectProperty("p" + at, values.get(at));
    }

    Message found = through(context, message);

    for (int at = 0; at < values.size(); at++) {
      assertEquals(values.get(at), found.getObjectProperty("p" + at));
    }
  }

  @Test
  public void headersOfTheSender() throws Exception {
    JMSContext context = open();
    context
        .createProducer()
        .setJMSCorrelationID("correlation")
        .setJMSType("type")
        .setJMSReplyTo(context.createTopic("answers"))
        .setPriority(7)
        .setTimeToLive(60_000)
        .setDeliveryMode(DeliveryMode.NON_PERSISTENT)
        .setProperty("JMSXGroupID", "group")
        .setProperty("JMSXGroupSeq", 3)
        .send(queue(), "x");

    Message found = context.createConsumer(queue()).receive(LONG);

    assertEquals("correlation", found.getJMSCorrelationID());
    assertEquals("type", found.getJMSType());
    assertEquals(context.createTopic("answers"), found.getJMSReplyTo());
    assertEquals(queue(), found.getJMSDestination());
    assertEquals(7, found.getJMSPriority());
    assertEquals(DeliveryMode.NON_PERSISTENT, found.getJMSDeliveryMode());
    assertEquals(60_000, found.getJMSExpiration() - found.getJMSTimestamp(), 5_000);
    assertTrue(found.getJMSMessageID().startsWith("ID:"));
    assertEquals("group", found.getStringProperty("JMSXGroupID"));
    assertEquals(3, found.getIntProperty("JMSXGroupSeq"));
    assertEquals(1, found.getIntProperty("JMSXDeliveryCount"));
    assertFalse(found.getJMSRedelivered());
  }

  @Test
  public void aQueueKeepsItsOrderWhateverThePriorities() throws Exception {
    JMSContext context = open();
    int[] priorities = {1, 9, 4, 9, 0};
    for (int priority : priorities) {
      context.createProducer().setPriority(priority).send(queue(), "x");
    }

    JMSConsumer consumer = context.createConsumer(queue());

    for (int priority : priorities) {
      assertEquals(priority, consumer.receive(LONG).getJMSPriority());
    }
  }

  @Test
  public void whatHasExpiredDoesNotCome() throws Exception {
    JMSContext context = open();
    context.createProducer().setTimeToLive(1).send(queue(), "short");
    context.createProducer().send(queue(), "long");

    assertEquals("long", context.createConsumer(queue()).receiveBody(String.class, LONG));
    assertNull(context.createConsumer(queue()).receive(SHORT));
  }

  @Test
  public void whatIsDelayedComesLater() throws Exception {
    JMSContext context = open();
    long sent = System.currentTimeMillis();
    context.createProducer().setDeliveryDelay(1_000).send(queue(), "later");
    context.createProducer().send(queue(), "now");
    JMSConsumer consumer = context.createConsumer(queue());

    assertEquals("now", consumer.receiveBody(String.class, LONG));
    Message later = consumer.receive(LONG);
    long waited = System.currentTimeMillis() - sent;

    assertEquals("later", text(later));
    assertTrue("after " + waited + " ms", waited >= 1_000);
    assertEquals(1_000, later.getJMSDeliveryTime() - later.getJMSTimestamp(), 500);
  }
}
