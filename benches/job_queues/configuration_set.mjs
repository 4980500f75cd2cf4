// Creates the configuration set "pillarbox" at the simulator, whose events arrive in its queue, as
// `pillarbox aws setup` does at SES.

import {
  CreateConfigurationSetCommand, CreateConfigurationSetEventDestinationCommand, SESv2Client,
} from "@aws-sdk/client-sesv2";

const ses = new SESv2Client({ endpoint: process.env.SES_ENDPOINT });
const ConfigurationSetName = "pillarbox";
await ses.send(new CreateConfigurationSetCommand({ ConfigurationSetName }));
await ses.send(new CreateConfigurationSetEventDestinationCommand({
  ConfigurationSetName,
  EventDestinationName: "events",
  EventDestination: {
    Enabled: true,
    MatchingEventTypes: ["SEND", "REJECT", "BOUNCE", "COMPLAINT", "DELIVERY", "DELIVERY_DELAY"],
    SnsDestination: { TopicArn: "arn:aws:sns:eu-west-1:000000000000:pillarbox-events" },
  },
}));
