import com.fasterxml.jackson.databind.ObjectMapper;
import java.lang.reflect.InvocationHandler;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.URLEncoder;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.hadoop.ipc.Server;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.yarn.api.ApplicationClientProtocol;
import org.apache.hadoop.yarn.api.protocolrecords.GetApplicationReportRequest;
import org.apache.hadoop.yarn.api.protocolrecords.GetApplicationReportResponse;
import org.apache.hadoop.yarn.api.protocolrecords.GetApplicationsRequest;
import org.apache.hadoop.yarn.api.protocolrecords.GetApplicationsResponse;
import org.apache.hadoop.yarn.api.protocolrecords.GetClusterMetricsResponse;
import org.apache.hadoop.yarn.api.protocolrecords.GetNewApplicationResponse;
import org.apache.hadoop.yarn.api.protocolrecords.KillApplicationRequest;
import org.apache.hadoop.yarn.api.protocolrecords.KillApplicationResponse;
import org.apache.hadoop.yarn.api.protocolrecords.SubmitApplicationRequest;
import org.apache.hadoop.yarn.api.protocolrecords.SubmitApplicationResponse;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.ApplicationReport;
import org.apache.hadoop.yarn.api.records.ApplicationSubmissionContext;
import org.apache.hadoop.yarn.api.records.FinalApplicationStatus;
import org.apache.hadoop.yarn.api.records.Resource;
import org.apache.hadoop.yarn.api.records.YarnApplicationState;
import org.apache.hadoop.yarn.api.records.YarnClusterMetrics;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.exceptions.ApplicationNotFoundException;
import org.apache.hadoop.yarn.exceptions.YarnException;
import org.apache.hadoop.yarn.ipc.YarnRPC;
import org.apache.hadoop.yarn.util.Records;

/**
 * Hadoop's own RPC server in front of the fake of yarn.py, which keeps the applications: what spark-submit and `yarn
 * application` speak. Prints its port. Its arguments: the URL of the fake; and, if it wants Kerberos, its principal and
 * its keytab. It ends when its standard input ends.
 */
public class ResourceManager implements InvocationHandler {
    private final String url;
    private final HttpClient client = HttpClient.newHttpClient();
    private final ObjectMapper json = new ObjectMapper();

    ResourceManager(String url) {
        this.url = url;
    }

    public static void main(String[] args) throws Exception {
        YarnConfiguration conf = new YarnConfiguration();
        if (args.length > 1) {
            conf.set("hadoop.security.authentication", "kerberos");
            conf.set(YarnConfiguration.RM_PRINCIPAL, args[1]);
            UserGroupInformation.setConfiguration(conf);
            UserGroupInformation.loginUserFromKeytab(args[1], args[2]);
        }
        Class<?>[] interfaces = {ApplicationClientProtocol.class};
        Object service = Proxy.newProxyInstance(
            ResourceManager.class.getClassLoader(), interfaces, new ResourceManager(args[0]));
        InetSocketAddress address = new InetSocketAddress("127.0.0.1", 0);
        Server server = YarnRPC.create(conf)
            .getServer(ApplicationClientProtocol.class, service, address, conf, null, 2);
        server.start();
        System.out.println(server.getListenerAddress().getPort());
        while (System.in.read() >= 0) {}
        System.exit(0);
    }

    @Override
    public Object invoke(Object proxy, Method method, Object[] args) throws Throwable {
        switch (method.getName()) {
            case "getNewApplication":
                GetNewApplicationResponse fresh = Records.newRecord(GetNewApplicationResponse.class);
                fresh.setApplicationId(ApplicationId.fromString((String) ask("POST", "/new", "{}").get("id")));
                fresh.setMaximumResourceCapability(Resource.newInstance(65536, 64));
                return fresh;
            case "submitApplication":
                submit(((SubmitApplicationRequest) args[0]).getApplicationSubmissionContext());
                return Records.newRecord(SubmitApplicationResponse.class);
            case "getApplicationReport":
                ApplicationId one = ((GetApplicationReportRequest) args[0]).getApplicationId();
                Map<?, ?> app = (Map<?, ?>) ask("GET", "/ws/v1/cluster/apps/" + one, null).get("app");
                return GetApplicationReportResponse.newInstance(report(app));
            case "getApplications":
                return GetApplicationsResponse.newInstance(listed((GetApplicationsRequest) args[0]));
            case "forceKillApplication":
                return kill(((KillApplicationRequest) args[0]).getApplicationId());
            case "getClusterMetrics":
                return GetClusterMetricsResponse.newInstance(YarnClusterMetrics.newInstance(1));
            default:
                throw new YarnException(method.getName() + " is not played here");
        }
    }

    private void submit(ApplicationSubmissionContext context) throws Exception {
        ask("POST", "/submit", json.writeValueAsString(Map.of(
            "name", context.getApplicationName(),
            "tags", String.join(",", context.getApplicationTags()),
            "user", Server.getRemoteUser().getShortUserName(),
            "id", context.getApplicationId().toString())));
    }

    private List<ApplicationReport> listed(GetApplicationsRequest request) throws Exception {
        List<String> query = new ArrayList<>();
        if (request.getApplicationTags() != null && !request.getApplicationTags().isEmpty()) {
            query.add("applicationTags=" + String.join(",", request.getApplicationTags()));
        }
        if (request.getApplicationStates() != null && !request.getApplicationStates().isEmpty()) {
            query.add("states=" + request.getApplicationStates().stream().map(Enum::name).collect(Collectors.joining(",")));
        }
        Map<?, ?> apps = (Map<?, ?>) ask("GET", "/ws/v1/cluster/apps?" + String.join("&", query), null).get("apps");
        List<ApplicationReport> found = new ArrayList<>();
        for (Object app : apps == null ? List.of() : (List<?>) apps.get("app")) {
            found.add(report((Map<?, ?>) app));
        }
        return found;
    }

    private KillApplicationResponse kill(ApplicationId id) throws Exception {
        String user = URLEncoder.encode(Server.getRemoteUser().getShortUserName(), StandardCharsets.UTF_8);
        Map<?, ?> said = ask("PUT", "/ws/v1/cluster/apps/" + id + "/state?user.name=" + user, "{\"state\": \"KILLED\"}");
        return KillApplicationResponse.newInstance("KILLED".equals(said.get("state")));
    }

    private static ApplicationReport report(Map<?, ?> app) {
        ApplicationId id = ApplicationId.fromString((String) app.get("id"));
        Set<String> tags = new HashSet<>(List.of(((String) app.get("applicationTags")).split(",")));
        ApplicationReport report = Records.newRecord(ApplicationReport.class);
        report.setApplicationId(id);
        report.setCurrentApplicationAttemptId(ApplicationAttemptId.newInstance(id, 1));
        report.setUser((String) app.get("user"));
        report.setQueue((String) app.get("queue"));
        report.setName((String) app.get("name"));
        report.setApplicationType((String) app.get("applicationType"));
        report.setApplicationTags(tags);
        report.setYarnApplicationState(YarnApplicationState.valueOf((String) app.get("state")));
        report.setFinalApplicationStatus(FinalApplicationStatus.valueOf((String) app.get("finalStatus")));
        report.setDiagnostics((String) app.get("diagnostics"));
        report.setTrackingUrl((String) app.get("trackingUrl"));
        report.setOriginalTrackingUrl((String) app.get("trackingUrl"));
        report.setStartTime(((Number) app.get("startedTime")).longValue());
        report.setLaunchTime(((Number) app.get("launchTime")).longValue());
        report.setFinishTime(((Number) app.get("finishedTime")).longValue());
        report.setProgress(((Number) app.get("progress")).floatValue());
        report.setHost("N/A");
        report.setRpcPort(-1);
        return report;
    }

    private Map<?, ?> ask(String method, String path, String body) throws Exception {
        HttpRequest.BodyPublisher said =
            body == null ? HttpRequest.BodyPublishers.noBody() : HttpRequest.BodyPublishers.ofString(body);
        HttpResponse<String> answer = client.send(
            HttpRequest.newBuilder(URI.create(url + path)).method(method, said).build(),
            HttpResponse.BodyHandlers.ofString());
        if (answer.statusCode() == 404) {
            throw new ApplicationNotFoundException(path + " is not there");
        }
        if (answer.statusCode() >= 300) {
            throw new YarnException(answer.statusCode() + " " + answer.body());
        }
        return json.readValue(answer.body(), Map.class);
    }
}
