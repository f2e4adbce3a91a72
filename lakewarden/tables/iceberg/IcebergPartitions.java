// Partitions leave a table, inside the driver's JVM. Compiled by Janino like IcebergBridge.java; the same rules hold.
package lakewarden;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.HashSet;
import java.util.Iterator;
import java.util.Map;
import java.util.Set;
import org.apache.iceberg.DataFile;
import org.apache.iceberg.DeleteFiles;
import org.apache.iceberg.FileScanTask;
import org.apache.iceberg.Table;

public final class IcebergPartitions {
  private static final ObjectMapper JSON = new ObjectMapper();

  /**
   * One atomic `delete` snapshot: every file the scan found in these partitions leaves. The library checks on every attempt
   * that each of them is still there; whatever else was added meanwhile is not looked at, so it stays.
   */
  public void drop(Table table, IcebergBridge.Scan scan, String partitionsJson, String summaryJson) throws Exception {
    int[] ids = (int[]) JSON.readValue(partitionsJson, int[].class);
    Set wanted = new HashSet();
    for (int i = 0; i < ids.length; i++) {
      wanted.add(Integer.valueOf(ids[i]));
    }
    DeleteFiles delete = table.newDelete().validateFilesExist();
    Iterator files = scan.partitionOf.entrySet().iterator();
    while (files.hasNext()) {
      Map.Entry each = (Map.Entry) files.next();
      if (wanted.contains(each.getValue())) {
        delete.deleteFile((DataFile) ((FileScanTask) scan.tasks.get(each.getKey())).file());
      }
    }
    JsonNode summary = JSON.readTree(summaryJson);
    Iterator keys = summary.fieldNames();
    while (keys.hasNext()) {
      String key = (String) keys.next();
      delete.set(key, ((JsonNode) summary.get(key)).asText());
    }
    delete.commit();
  }
}
