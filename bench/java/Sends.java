import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import java.util.StringJoiner;
import org.apache.qpid.jms.JmsConnectionFactory;

/**
 * Persistent sends over Qpid JMS, one at a time: each returns when the server has accepted it.
 *
 * <p>Arguments: URL, user (who is the password, too; empty: anonymous), queue, bytes of a message,
 * seconds. Says {@code warm} after it has sent for so long, waits for a line, sends for so long
 * again, and says how many nanoseconds each send took, as JSON.
 */
final class Sends {
    private Sends() {}

    public static void main(String[] arguments) throws Exception {
        JmsConnectionFactory factory = new JmsConnectionFactory(arguments[0]);
        String user = arguments[1];
        long nanoseconds = (long) (Double.parseDouble(arguments[4]) * 1e9);
        try (Connection connection =
                user.isEmpty() ? factory.createConnection() : factory.createConnection(user, user)) {
            Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
            MessageProducer producer = session.createProducer(session.createQueue(arguments[2]));
            producer.setDeliveryMode(DeliveryMode.PERSISTENT);
            byte[] body = new byte[Integer.parseInt(arguments[3])];
            send(session, producer, body, nanoseconds, new StringJoiner(","));
            System.out.println("warm");
            System.in.read();
            StringJoiner taken = new StringJoiner(",", "{\"nanoseconds\":[", "]}");
            send(session, producer, body, nanoseconds, taken);
            System.out.println(taken);
        }
    }

    private static void send(
            Session session, MessageProducer producer, byte[] body, long nanoseconds, StringJoiner taken)
            throws Exception {
        long started = System.nanoTime();
        for (long before = started, now; before - started < nanoseconds; before = now) {
            BytesMessage message = session.createBytesMessage();
            message.writeBytes(body);
            producer.send(message);
            now = System.nanoTime();
            taken.add(Long.toString(now - before));
        }
    }
}
