package penstock.interop;

import java.util.ArrayList;
import java.util.List;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.Request;
import org.junit.runner.Result;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/** Runs JUnit classes and says in lines of one form what has become of each test. */
public final class Suite {
  private Suite() {}

  /**
   * The classes, or single tests, by name. Lines: {@code FAILED test: why}, {@code CLASS ran name},
   * {@code RAN}.
   */
  public static void main(String[] names) throws ClassNotFoundException {
    JUnitCore core = new JUnitCore();
    core.addListener(new Failures());
    int ran = 0;
    int failed = 0;
    int ignored = 0;
    for (String name : names) {
      long started = System.nanoTime();
      Result result = core.run(request(name));
      ran += result.getRunCount();
      failed += result.getFailureCount();
      ignored += result.getIgnoreCount();
      long millis = (System.nanoTime() - started) / 1_000_000;
      System.out.printf("CLASS %d %s %d ms%n", result.getRunCount(), name, millis);
    }
    System.out.printf("RAN %d FAILED %d IGNORED %d%n", ran, failed, ignored);
    System.out.flush();
    // What a test has left open may have threads that keep the machine running.
    Runtime.getRuntime().halt(0);
  }

  /** A class, or a test of one as {@code FAILED} names it. */
  private static Request request(String name) throws ClassNotFoundException {
    try {
      return Request.aClass(Class.forName(name));
    } catch (ClassNotFoundException absent) {
      int dot = name.lastIndexOf('.');
      return Request.method(Class.forName(name.substring(0, dot)), name.substring(dot + 1));
    }
  }

  private static final class Failures extends RunListener {
    @Override
    public void testFailure(Failure failure) {
      Description test = failure.getDescription();
      System.out.printf(
          "FAILED %s.%s: %s%n", test.getClassName(), test.getMethodName(), reason(failure));
    }

    private static String reason(Failure failure) {
      List<String> causes = new ArrayList<>();
      for (Throwable each = failure.getException(); each != null; each = each.getCause()) {
        causes.add(String.valueOf(each).replaceAll("\\s+", " "));
      }
      return String.join(" <- ", causes);
    }
  }
}
