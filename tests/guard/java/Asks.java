import coordd.Guard;
import java.util.Arrays;

/** A driver in tests: asks what its first word says, with the second as the limit in seconds. */
public final class Asks {
  public static void main(String[] words) {
    double limitS = Double.parseDouble(words[1]);
    switch (words[0]) {
      case "gate":
        Guard.gate(limitS);
        System.out.println("it went on");
        break;
      case "owner":
        System.out.println(Guard.stillOwner(limitS));
        break;
      case "transact":
        System.out.println(
            Guard.<String>transact(of -> String.join(" ", of.appId, of.run, "" + of.attempt, "" + of.token, "" + of.version),
                limitS));
        break;
      default: // each listener of the other words is asked alone
        for (String address : Arrays.asList(words).subList(2, words.length)) {
          System.setProperty("spark.coordd.guard", address);
          System.out.println(Guard.stillOwner(limitS));
        }
    }
  }
}
