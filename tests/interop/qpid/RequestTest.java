package penstock.interop;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import jakarta.jms.JMSContext;
import jakarta.jms.Message;
import jakarta.jms.QueueConnection;
import jakarta.jms.QueueRequestor;
import jakarta.jms.QueueSession;
import jakarta.jms.Session;
import jakarta.jms.TemporaryQueue;
import jakarta.jms.TextMessage;
import jakarta.jms.TopicConnection;
import jakarta.jms.TopicRequestor;
import jakarta.jms.TopicSession;
import org.apache.qpid.jms.JmsConnectionFactory;
import org.apache.qpid.jms.JmsQueue;
import org.apache.qpid.jms.JmsTopic;
import org.junit.Test;

/** Request and reply between JMS and programs of Penstock's own client. */
public final class RequestTest extends RealmTest {
  private static final int REQUESTS = 3;

  @Test
  public void aQueueRequestorIsAnswered() throws Exception {
    try (QueueConnection connection = new JmsConnectionFactory(url()).createQueueConnection()) {
      connection.start();
      QueueSession session = connection.createQueueSession(false, Session.AUTO_ACKNOWLEDGE);
      QueueRequestor requestor = new QueueRequestor(session, new JmsQueue("jms/asked"));
      for (int number = 0; number < REQUESTS; number++) {
        Message request = session.createTextMessage("question " + number);
        Message answer = requestor.request(request);
        assertEquals("re: question " + number, ((TextMessage) answer).getText());
        assertEquals(request.getJMSMessageID(), answer.getJMSCorrelationID());
      }
      requestor.close();
    }
  }

  @Test
  public void aTopicRequestorIsAnswered() throws Exception {
    try (TopicConnection connection = new JmsConnectionFactory(url()).createTopicConnection()) {
      connection.start();
      TopicSession session = connection.createTopicSession(false, Session.AUTO_ACKNOWLEDGE);
      TopicRequestor requestor = new TopicRequestor(session, new JmsTopic("jms/published"));
      for (int number = 0; number < REQUESTS; number++) {
        Message request = session.createTextMessage("question " + number);
        request.setJMSCorrelationID("correlation " + number);
        Message answer = requestor.request(request);
        assertEquals("re: question " + number, ((TextMessage) answer).getText());
        assertEquals("correlation " + number, answer.getJMSCorrelationID());
      }
      requestor.close();
    }
  }

  @Test
  public void aRequestOfPenstockIsAnswered() throws Exception {
    JMSContext context = open();
    Message request = context.createConsumer(new JmsQueue("jms/work")).receive(LONG);
    assertTrue(request.getJMSReplyTo() instanceof TemporaryQueue);
    assertEquals(request.getJMSMessageID(), request.getJMSCorrelationID());
    byte[] asked = request.getBody(byte[].class);
    context
        .createProducer()
        .setJMSCorrelationID(request.getJMSMessageID())
        .send(request.getJMSReplyTo(), ("re: " + new String(asked, "UTF-8")).getBytes("UTF-8"));
  }
}
