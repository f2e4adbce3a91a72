// Appends with summaries of the caller's choosing, inside the driver's JVM. Compiled by Janino, so no generics.
package tests;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.Iterator;
import java.util.Map;
import org.apache.iceberg.AppendFiles;
import org.apache.iceberg.DataFiles;
import org.apache.iceberg.Table;
import org.apache.iceberg.Transaction;

public final class LineageHistory {
  private static final ObjectMapper JSON = new ObjectMapper();

  private Transaction open;

  /** Many snapshots and one metadata file: a commit for each would write all those before it again. */
  public void begin(Table table) {
    open = table.newTransaction();
  }

  public void commit() {
    open.commitTransaction();
    open = null;
  }

  /** One append of a file that exists in metadata only; its snapshot's id. */
  public long append(int number, String summary) throws Exception {
    Table table = open.table();
    AppendFiles append = open.newAppend();
    Iterator keys = JSON.readTree(summary).fields();
    while (keys.hasNext()) {
      Map.Entry each = (Map.Entry) keys.next();
      append.set((String) each.getKey(), ((JsonNode) each.getValue()).asText());
    }
    append.appendFile(DataFiles.builder(table.spec())
        .withPath(table.location() + "/data/" + number + ".parquet")
        .withFileSizeInBytes(100L)
        .withRecordCount(number + 1L)
        .withFormat("parquet")
        .build());
    append.commit();
    return open.table().currentSnapshot().snapshotId();
  }
}
